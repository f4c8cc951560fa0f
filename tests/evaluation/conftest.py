from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from kgexp.data.graph import Graph, Split
from kgexp.data.known import KnownTriples
from kgexp.data.sides import Side
from kgexp.data.vocabulary import EntityType, Vocabulary
from kgexp.models.complex import ComplEx
from kgexp.models.distmult import DistMult
from kgexp.models.rotate import RotatE
from kgexp.models.transe import TransE
from kgexp.sharding.local import LocalTable


def _graph(train, valid=(), test=(), n=None, m=None):
    parts = [np.asarray(part, dtype=np.int32).reshape(-1, 3) for part in (train, valid, test)]
    everything = np.concatenate(parts)
    n = n or int(everything[:, [0, 2]].max()) + 1
    m = m or int(everything[:, 1].max()) + 1
    splits = [Split(name, part, None) for name, part in zip(("train", "valid", "test"), parts, strict=True)]
    entities = Vocabulary(pa.array([f"e{i}" for i in range(n)], pa.large_string()), "entity")
    relations = Vocabulary(pa.array([f"r{i}" for i in range(m)], pa.large_string()), "relation")
    return Graph("made", "0" * 32, *splits, entities, relations, KnownTriples.build(parts, m), report=None)


def _random_graph(n, m, sizes, seed=0):
    random = np.random.default_rng(seed)
    # Squares of uniform numbers make hubs, so that filters take out many candidates.
    parts = [
        np.stack(
            [
                (random.random(size) ** 2 * n).astype(int),
                random.integers(0, m, size),
                (random.random(size) ** 2 * n).astype(int),
            ],
            axis=1,
        )
        for size in sizes
    ]
    return _graph(*parts, n=n, m=m)


def _typed_graph(seed=0):
    """Three types of 61, 23 and 3 entities, and relations of four kinds."""
    random = np.random.default_rng(seed)
    types = [EntityType("user", 0, 61), EntityType("item", 61, 84), EntityType("tag", 84, 87)]
    ends = np.array([[0, 1], [0, 0], [1, 2], [2, 1]], np.int32)
    parts = []
    for size in (400, 40, 70):
        r = random.integers(0, len(ends), size)
        h, t = (np.array([random.integers(types[k].start, types[k].stop) for k in ends[r, side]]) for side in (0, 1))
        parts.append(np.stack([h, r, t], axis=1))
    graph = _graph(*parts, n=87, m=len(ends))
    entities = Vocabulary(pa.array([f"e{i}" for i in range(87)], pa.large_string()), "entity", types)
    return replace(graph, entities=entities, relation_types=ends)


def _table(name, rows):
    return LocalTable(name, torch.as_tensor(rows), {}, None)


MODELS = {
    "complex": ComplEx,
    "distmult": DistMult,
    "transe_l1": partial(TransE, norm="l1", margin=3.0),
    "transe_l2": partial(TransE, norm="l2"),
    "rotate": partial(RotatE, margin=3.0),
    "rotate_l2": partial(RotatE, norm="l2"),
}


def _random_model(kind, graph, dim=8, *, reciprocal=True, dtype=torch.float32, seed=0, scale=1.0):
    model = MODELS[kind](dim, reciprocal)
    generator = torch.Generator().manual_seed(seed)
    shape = (model.num_relation_rows(graph.num_relations), model.relation_dim)
    entity = scale * torch.randn((graph.num_entities, dim), generator=generator, dtype=torch.float64)
    relation = torch.randn(shape, generator=generator, dtype=torch.float64)
    return model, _table("entity", entity.to(dtype)), _table("relation", relation.to(dtype))


def _reference(model, entity, relation, graph, triples, mask):
    """greater, equal, |C|: one triple, side and candidate of the answer's type at a time, through the
    float64 kernel alone."""
    rows = entity.state_tensors()["weight"].double()
    relation_rows = relation.state_tensors()["weight"].double()
    known = {}
    for bit, split in ((1, graph.train), (2, graph.valid), (4, graph.test)):
        for triple in split.triples.tolist():
            known[tuple(triple)] = known.get(tuple(triple), 0) | bit
    out = np.zeros((3, len(triples), 2), dtype=np.int64)
    for i, triple in enumerate(np.asarray(triples).tolist()):
        for side in Side:
            answer = triple[side.column]
            r = model.relation_rows(torch.tensor([triple[1]]), side, graph.num_relations)
            query = model.query(side, rows[triple[side.given]][None], relation_rows[r])
            scores = model.rescore_pairs(query.expand(len(rows), -1), rows)
            scores = [-np.inf if score != score else score for score in scores.tolist()]
            (ids,) = (range(start, stop) for _, start, stop in graph.entities.types if start <= answer < stop)
            for e, score in enumerate(scores):
                if e not in ids:
                    continue
                other = list(triple)
                other[side.column] = e
                if e != answer and known.get(tuple(other), 0) & mask:
                    continue
                out[2, i, side] += 1
                out[0, i, side] += e != answer and score > scores[answer]
                out[1, i, side] += e != answer and score == scores[answer]
    return out


@pytest.fixture(scope="session")
def made():
    """Makes graphs, tables and models, and ranks slowly."""
    return SimpleNamespace(
        graph=_graph,
        random_graph=_random_graph,
        typed_graph=_typed_graph,
        table=_table,
        random_model=_random_model,
        reference=_reference,
    )
