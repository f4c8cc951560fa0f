"""What Hydra needs to compose the files below `conf/`: their folder, the root's schema, the resolvers.

Neither torch nor W&B is imported here: help, completion and errors answer at once.
"""

import os.path
import re
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from kgexp.errors import ConfigError
from kgexp.schemas import Config


def config_dir() -> str:
    """The conf folder: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")


def holds_run(folder: str) -> bool:
    """Whether a run was started in the folder: its resolved configuration is there."""
    return os.path.isfile(os.path.join(folder, "config.yaml"))


def _slug(*parts: Any) -> str:
    """Parts joined by hyphens, each fit for a file name."""
    return "-".join(re.sub(r"[^\w.+-]+", "_", str(part)) for part in parts)


def _run_dir(resume: str | None, fresh: str) -> str:
    """The folder of a single run: the one that is continued, else a fresh one."""
    if resume is None or resume == "auto":
        return fresh
    if not holds_run(resume):
        raise ConfigError(
            f"resume={resume} is not the folder of a run, as it holds no config.yaml: give a folder below "
            "outputs/runs, or leave resume out to start a new run."
        )
    return resume


def _hydra_subdir(folder: str) -> str | None:
    """Where Hydra records what it composed: nowhere once the folder holds a run, whose record stays."""
    return None if holds_run(folder) else ".hydra"


def _base_name(path: str) -> str:
    """The last part of a path, without the endings of a data file."""
    name = os.path.basename(os.path.normpath(path))
    return re.sub(r"(\.(tsv|txt))?(\.(gz|zst))?$", "", name) or name


class _Shared(dict[str, Any]):
    """Hydra's store of schemas, which it copies in full for every look at a group: a third of a second for
    `--help`. What is read from the store is a copy already, so the copies of the store may be one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Shared":
        return self


def register() -> None:
    """Makes the root's schema and the resolvers known to Hydra and OmegaConf; safe to call again."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config, provider="kgexp")
    store.repo = _Shared(store.repo)
    for resolver in (_slug, _run_dir, _hydra_subdir, _base_name):
        OmegaConf.register_new_resolver(f"kgexp.{resolver.__name__[1:]}", resolver, replace=True)


register()
