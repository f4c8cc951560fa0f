"""Whole runs of the command, on a small graph, as users start them."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kgexp.checkpoint.checkpoint import Checkpoint

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "WANDB_SILENT": "true"}
BASE = ("train.threads=1", "model.dim=16", "train.batch_size=50", "tracking.every_steps=1", "train.device=cpu")

#: Entities of the large graph.
LARGE = 400_000


def kills(default: int) -> int:
    """Kills in a test. Claims are about a kill at any moment, so the environment can ask for more."""
    return int(os.environ.get("KGEXP_TEST_KILLS", default))


class Command:
    """`python -m kgexp` with a run folder of its own."""

    def __init__(self, home: Path, data: Path) -> None:
        self.home, self.folder = home, home / "run"
        self.arguments = [
            "dataset=files",
            f"dataset.path={data}",
            f"dataset.cache={home / 'cache'}",
            f"hydra.run.dir={self.folder}",
            *BASE,
        ]

    def start(self, *overrides: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "kgexp", *self.arguments, *overrides],
            cwd=self.home,
            env=os.environ | ENVIRONMENT | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *overrides: str, **environment: str) -> subprocess.CompletedProcess:
        process = self.start(*overrides, **environment)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def wait_for_step(self, process: subprocess.Popen, step: int, seconds: float = 180) -> None:
        """Until metrics.jsonl has a row of `step`, which is written in the middle of the step's work."""
        deadline = time.monotonic() + seconds
        while process.poll() is None and (not (rows := self.rows()) or rows[-1]["step"] < step):
            assert time.monotonic() < deadline, f"step {step} did not come in {seconds} s"
            time.sleep(0.002)

    def rows(self) -> list[dict]:
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def result(self) -> dict:
        return json.loads((self.folder / "result.json").read_text())

    def checkpoints(self) -> list[Path]:
        return sorted((self.folder / "checkpoints").glob("step_*"))

    def tensors(self, path: Path | None = None) -> dict:
        """Every tensor of a checkpoint, by default of the newest, whole."""
        checkpoint = Checkpoint(path or self.checkpoints()[-1])
        index = json.loads((checkpoint.path / "index.json").read_text())
        readers = [checkpoint.tensor(table, key) for table, keys in index["tables"].items() for key in keys]
        return {reader.name: reader.read(0, reader.shape[0]) for reader in readers}


@pytest.fixture(scope="session")
def graph_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph that can be learnt: 97 entities on a ring, relation `rK` leads K + 1 further."""
    folder = tmp_path_factory.mktemp("ring")
    generator = np.random.default_rng(0)
    lines = [f"e{h}\tr{k}\te{(h + k + 1) % 97}\n" for h in range(97) for k in range(7)]
    order = generator.permutation(len(lines))
    for name, part in (("train", order[:501]), ("valid", order[501:560]), ("test", order[560:])):
        (folder / f"{name}.txt").write_text("".join(lines[i] for i in part))
    return folder


@pytest.fixture(scope="session")
def large_graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A graph in which every entity stands once, and the cache with it: reading it is not what is measured."""
    from kgexp.data.load import load

    folder, cache = tmp_path_factory.mktemp("large"), tmp_path_factory.mktemp("cache")
    generator = np.random.default_rng(0)
    pairs = generator.permutation(LARGE).reshape(-1, 2)
    for name, part in (("train", pairs), ("valid", generator.integers(0, LARGE, (60, 2)))):
        lines = (f"e{h}\tr{i % 11}\te{t}\n" for i, (h, t) in enumerate(part.tolist()))
        (folder / f"{name}.txt").write_text("".join(lines))
    dataset = {"name": "large", "path": str(folder), "columns": ["head", "relation", "tail"], "header": False}
    files = {"relation_types": None, "relation_weights": None}
    load({**dataset, **files, "cache": str(cache), "valid": 0.1, "test": 0.1, "split_seed": 0})
    return folder, cache


@pytest.fixture
def chance() -> random.Random:
    """Draws the moments of kills; the environment can ask for others."""
    return random.Random(int(os.environ.get("KGEXP_TEST_SEED", "1")))


@pytest.fixture
def command(tmp_path: Path, graph_files: Path) -> Command:
    return Command(tmp_path, graph_files)


@pytest.fixture
def make_command(tmp_path: Path, graph_files: Path):
    def make(name: str) -> Command:
        (tmp_path / name).mkdir()
        return Command(tmp_path / name, graph_files)

    return make
