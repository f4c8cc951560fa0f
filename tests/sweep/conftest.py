from small_graph import configured, graph_folder
from stand_in_run import kgexp, run_module

__all__ = ["configured", "graph_folder", "kgexp", "run_module"]
