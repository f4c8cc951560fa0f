"""A rank that owns one row, or none, takes part in everything: whole runs, with ranks as threads."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from rank_threads import as_ranks

from kgexp.check import check
from kgexp.run import run

FEW = (
    *("sharding=rowwise", "sharding.ranks=4", "scoring=negatives", "dataset=files", "dataset.cache=null"),
    *("train.batch_size=3", "train.device=cpu", "train.threads=1", "train.dtype=float64", "model.dim=4"),
    *("checkpoint.every_steps=2", "evaluation.every_steps=3", "tracking.progress=none", "tracking.every_steps=1"),
)


@pytest.fixture
def start(composed, tmp_path, monkeypatch):
    """Runs the command's configuration on a ring of so many entities, on so many ranks."""
    monkeypatch.setenv("WANDB_MODE", "disabled")

    def run_on(entities: int, ranks: int, folder: Path, *overrides: str) -> dict:
        files = tmp_path / f"ring-{entities}"
        files.mkdir(exist_ok=True)
        for name, relation in (("train", "next"), ("valid", "follows")):
            lines = [f"e{h}\t{relation}\te{(h + 1) % entities}\n" for h in range(entities)]
            (files / f"{name}.txt").write_text("".join([*lines, "e0\tfollows\te2\n"] if name == "train" else lines))
        config = check(composed(*FEW, f"dataset.path={files}", *overrides))
        folder.mkdir(exist_ok=True)
        as_ranks(ranks, lambda world: run(config, str(folder), world))
        return json.loads((folder / "result.json").read_text())

    return run_on


def losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.parametrize(("entities", "owned"), [(5, [1, 1, 1, 2]), (3, [0, 1, 1, 1])])
def test_more_ranks_than_rows_train_rank_save_and_resume(start, tmp_path, entities, owned):
    straight = start(entities, 4, tmp_path / "straight", "train.steps=9")
    bounds = straight["entity_bounds"]
    assert [stop - first for first, stop in pairwise(bounds)] == owned
    start(entities, 4, tmp_path / "resumed", "train.steps=5")
    resumed = start(entities, 4, tmp_path / "resumed", "train.steps=9", "resume=auto")
    alone = start(entities, 1, tmp_path / "alone", "train.steps=9")
    assert resumed["metrics"] == straight["metrics"] == alone["metrics"] != {}
    first, second, third = (losses(tmp_path / name) for name in ("straight", "resumed", "alone"))
    assert first == second and first == pytest.approx(third, rel=1e-9) and len(first) == 9
    print(f"{entities} entities on 4 ranks, which own {owned} of them: trained, ranked, saved, resumed as one does")
