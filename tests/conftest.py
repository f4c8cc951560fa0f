from collections.abc import Callable, Iterator

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from kgexp.config import config_dir


@pytest.fixture(scope="session")
def composed() -> Iterator[Callable[..., DictConfig]]:
    """Arguments to the composed configuration; `name` is set, as only a started run knows its choices."""
    with initialize_config_dir(version_base="1.3", config_dir=config_dir()):
        yield lambda *arguments, **options: compose("config", overrides=["name=test", *arguments], **options)
