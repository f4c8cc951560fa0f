from collections.abc import Callable
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from kgexp.config import config_dir


@pytest.fixture(scope="session")
def composed() -> Callable[..., DictConfig]:
    """Arguments to the composed configuration; `name` is set, as only a started run knows its choices."""

    def command(*arguments: str, **options: Any) -> DictConfig:
        # Hydra's state is global, and tests of the command clear it: it is set up anew for every call.
        with initialize_config_dir(version_base="1.3", config_dir=config_dir()):
            return compose("config", overrides=["name=test", *arguments], **options)

    return command
