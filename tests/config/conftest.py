from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from kgexp.check import check
from kgexp.config import config_dir


@pytest.fixture(scope="session")
def composed() -> Iterator[Callable[..., DictConfig]]:
    """Arguments to the composed configuration; `name` is set, as only a started run knows its choices."""
    with initialize_config_dir(version_base="1.3", config_dir=config_dir()):
        yield lambda *arguments, **options: compose("config", overrides=["name=test", *arguments], **options)


@pytest.fixture(scope="session")
def _valid(composed: Callable[..., DictConfig]) -> dict[str, Any]:
    return check(composed())


@pytest.fixture
def valid(_valid: dict[str, Any]) -> dict[str, Any]:
    """A good configuration, plain, that a test may spoil."""
    return deepcopy(_valid)
