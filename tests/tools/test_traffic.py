"""The traffic of row-wise sharding: its counts are those of sets, and no rank is started for them."""

import json

import numpy as np
import pytest

from kgexp.data.sides import Side
from kgexp.scoring.share import ALL
from kgexp.tools import plan
from kgexp.tools.composing import composed_rowwise
from kgexp.tools.needs import parts_of
from kgexp.tools.traffic import traffic

N, TRIPLES, BATCH, K, CHUNK, STEPS = 53, 101, 37, 5, 7, 4


@pytest.fixture
def arguments(tmp_path):
    random = np.random.default_rng(0)
    ring = [(i, 0, (i + 1) % N) for i in range(N)]
    drawn = zip(*(random.integers(0, high, TRIPLES - N).tolist() for high in (N, 3, N)), strict=True)
    for name, triples in (("train", [*ring, *drawn]), ("valid", ring[:2]), ("test", ring[2:4])):
        (tmp_path / f"{name}.txt").write_text("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in triples))
    data = ("dataset=files", f"dataset.path={tmp_path}", "dataset.cache=null", "model.dim=6", "train.device=cpu")
    return [*data, f"train.batch_size={BATCH}"]


NEGATIVES = ("scoring=negatives", f"scoring.negatives={K}", f"scoring.chunk_size={CHUNK}", "loss=logistic")


def owner(entity, ranks):
    return next(rank for rank in range(ranks) if entity < N * (rank + 1) // ranks)


def expected(parts, ranks, steps):
    """Rows that every rank wants of every owner, from the whole batches, by sets."""
    wanted = np.zeros((steps, ranks, ranks), int)
    whole = parts.batches(ALL)
    for step in range(steps):
        batch = whole(step)
        drawn = parts.objective.scoring.candidates(batch, N, parts.objective.seed)
        for rank in range(ranks):
            part = range(len(batch) * rank // ranks, len(batch) * (rank + 1) // ranks)
            ids = {entity for i in part for entity in batch.triples[i, [0, 2]].tolist()}
            for side in Side:
                ids |= {entity for i in part for entity in drawn[side].ids[i // CHUNK].tolist()}
            for entity in ids:
                wanted[step, rank, owner(entity, ranks)] += 1
    return wanted


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_counts_are_those_of_sets(arguments, ranks):
    config = composed_rowwise([*arguments, *NEGATIVES])
    parts = parts_of(config).supposing(config, ranks)
    measured = traffic(parts, STEPS)
    wanted = expected(parts, ranks, STEPS)
    assert np.array_equal(measured.requests, wanted)
    for rank in range(ranks):
        others = [other for other in range(ranks) if other != rank]
        assert np.array_equal(measured.asked[:, rank], wanted[:, rank].sum(1))
        assert np.array_equal(measured.remote[:, rank], wanted[:, rank][:, others].sum(1))
        assert np.array_equal(measured.served[:, rank], wanted[:, others][:, :, rank].sum(1))
    triples = np.array(
        [[size * (r + 1) // ranks - size * r // ranks for r in range(ranks)] for size in (37, 37, 27, 37)]
    )
    assert np.array_equal(measured.one_by_one, 2 * triples + 2 * (2 * triples) * K)
    assert not measured.queries.any()


def test_the_command_prints_every_rank(arguments, capsys):
    assert plan.main([*arguments, *NEGATIVES, "--ranks", "2,4", "--json", "--steps", str(STEPS)]) == 0
    two, four = json.loads(capsys.readouterr().out)["plans"]
    assert two["rows"] == [26, 27] and four["rows"] == [13, 13, 13, 14]
    assert four["memory_bytes"] < two["memory_bytes"]
    assert two["remote"] == two["served"][::-1], "what one of two ranks gets, the other has sent"
    assert two["sent_bytes"] == pytest.approx([4 * 6 * (two["remote"][0] + two["remote"][1])] * 2)
    mean = sum(four["served"]) / 4
    assert max(four["served"]) / mean - 1e-9 <= four["busiest"] < 2


def test_against_all_entities_queries_are_gathered(arguments, capsys):
    assert plan.main([*arguments, "scoring=onevsall", "--ranks", "2", "--json", "--steps", "1"]) == 0
    (two,) = json.loads(capsys.readouterr().out)["plans"]
    assert two["query_rows"] == [2 * 19, 2 * 18], "two queries a triple, of the other rank's 19 or 18"
    assert two["one_by_one"] == [2 * 18, 2 * 19]
    assert plan.main([*arguments, "scoring=onevsall", "--ranks", "2"]) == 0
    assert "queries of others" in capsys.readouterr().out


def test_other_shardings_are_refused(arguments, capsys):
    assert plan.main([*arguments, "sharding=none", "--ranks", "2"]) == 2
    assert "sharding=rowwise only" in capsys.readouterr().err
