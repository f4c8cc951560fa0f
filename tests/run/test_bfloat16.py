"""A training whose rows and state are kept in bfloat16."""

import pytest
import torch

from kgexp.check import check
from kgexp.data.load import load
from kgexp.storage.memory import MemoryStorage
from kgexp.train.assembly import Parts
from kgexp.train.step import train_step

OWN = ("dataset=files", "dataset.cache=null", "model.dim=12", "train.batch_size=50")


def test_it_learns_what_one_in_float32_does(composed, graph_files):
    config = check(composed(*OWN, f"dataset.path={graph_files}"))
    graph, reached = load(config["dataset"]), {}
    for dtype in (None, "bfloat16"):
        kept = {"table_dtype": dtype, "state_dtype": dtype}
        parts = Parts.of(config | {"train": config["train"] | kept}, graph, torch.device("cpu"))
        tables, batches = parts.tables(MemoryStorage()), parts.batches()
        for step in range(70):
            train_step(parts.objective, *tables, batches(step))
        evaluator = parts.evaluator(*tables, lambda line: None, lambda done, total: None)
        reached[dtype] = evaluator.evaluate("test").metrics["test/filtered/realistic/both/mrr"]
    assert all(t.dtype == torch.bfloat16 for table in tables for t in table.state_tensors().values())
    assert reached[None] > 0.3  # chance is about .05
    assert reached["bfloat16"] == pytest.approx(reached[None], abs=0.05)
