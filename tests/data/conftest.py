from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgexp.data.graph import Graph
from kgexp.data.load import load

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the real graphs are not here")
    return SHARED


@pytest.fixture
def dataset(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Makes the `dataset` group for a path."""

    def make(path: Path | str, **changes: Any) -> dict[str, Any]:
        group = {
            "name": "toy",
            "path": str(path),
            "columns": ["head", "relation", "tail"],
            "header": False,
            "valid": 0.05,
            "test": 0.05,
            "split_seed": 0,
            "relation_types": None,
            "relation_weights": None,
            "cache": str(tmp_path / "cache"),
        }
        return group | changes

    return make


@pytest.fixture
def loaded(tmp_path: Path, dataset: Callable[..., dict[str, Any]]) -> Callable[..., Graph]:
    """Writes the text of each split into a folder and loads it."""

    def make(train: str, valid: str | None = None, test: str | None = None, **changes: Any) -> Graph:
        folder = tmp_path / "graph"
        folder.mkdir(exist_ok=True)
        for name, text in (("train", train), ("valid", valid), ("test", test)):
            if text is not None:
                (folder / f"{name}.txt").write_text(text, encoding="utf-8", newline="")
        return load(dataset(folder, **changes))

    return make
