"""Makes our sweepers and launchers known to Hydra, which looks for them in packages called `hydra_plugins`."""

from hydra.core.plugins import Plugins

from kgexp.sweep.processes import LocalLauncher
from kgexp.sweep.search import SearchSweeper
from kgexp.sweep.slurm import SlurmLauncher
from kgexp.sweep.sweeper import GridSweeper


def register() -> None:
    """Under the names that the files below `conf/hydra` have as `_target_`; safe to call again."""
    known = Plugins.instance().class_name_to_class
    for plugin in (GridSweeper, SearchSweeper, LocalLauncher, SlurmLauncher):
        known[f"hydra_plugins.kgexp.{plugin.__name__}"] = plugin
