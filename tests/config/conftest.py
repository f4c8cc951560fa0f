from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from omegaconf import DictConfig

from kgexp.check import check


@pytest.fixture(scope="session")
def _valid(composed: Callable[..., DictConfig]) -> dict[str, Any]:
    return check(composed())


@pytest.fixture
def valid(_valid: dict[str, Any]) -> dict[str, Any]:
    """A good configuration, plain, that a test may spoil."""
    return deepcopy(_valid)
