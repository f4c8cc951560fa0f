import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from s3_server import s3_server

from kgexp.config import config_dir

# Before torch is imported, here and in all that tests start: they share the cores, and set threads where these matter.
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: Test processes at most: each holds torch, and waits for the longest test in the end.
_PROCESSES = 8


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Where all tests run, a process for each core, unless `-n` says otherwise or pytest-xdist is not there.

    Whoever names files or tests, or wants to look on, gets one process, which is there sooner.
    """
    everything = config.args_source is config.ArgsSource.TESTPATHS and not config.option.keyword
    watched = config.option.capture == "no" or config.option.trace
    if not everything or watched or hasattr(config, "workerinput") or config.getoption("numprocesses", 0) is not None:
        return
    config.option.numprocesses = "auto"
    config.option.maxprocesses = config.option.maxprocesses or _PROCESSES
    if config.option.dist == "no":
        config.option.dist = "worksteal"  # who has run out of tests takes them from the others


@pytest.fixture(scope="session")
def composed() -> Callable[..., DictConfig]:
    """Arguments to the composed configuration; `name` is set, as only a started run knows its choices."""

    def command(*arguments: str, **options: Any) -> DictConfig:
        # Hydra's state is global, and tests of the command clear it: it is set up anew for every call.
        with initialize_config_dir(version_base="1.3", config_dir=config_dir()):
            return compose("config", overrides=["name=test", *arguments], **options)

    return command


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, Any]]:
    """Options of fsspec for an S3 server with the bucket `graphs`."""
    with s3_server() as options:
        yield options
