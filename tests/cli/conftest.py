from stand_in_run import kgexp, run_module

__all__ = ["kgexp", "run_module"]
