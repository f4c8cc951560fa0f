"""A small graph of random rows, and the loss of a batch written as the plainest loop."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kgexp.data.graph import Split
from kgexp.data.known import KnownTriples
from kgexp.data.sides import Side
from kgexp.optim.adagrad import Adagrad
from kgexp.sharding.local import LocalTable

N, M, D, B = 53, 5, 8, 13  # entities, relations, width, batch


class World:
    """Random tables, and a batch with a repeated triple, a loop and an entity on both sides."""

    n, m = N, M

    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.entities = torch.randn(N, D, generator=g, dtype=torch.float64)
        self.relations = torch.randn(2 * M, D, generator=g, dtype=torch.float64)
        self.angles = self.relations[:, : D // 2].clone()
        triples = [torch.randint(0, high, (B,), generator=g) for high in (N, M, N)]
        self.triples = torch.stack(triples, dim=1)
        self.triples[1] = self.triples[0]
        self.triples[2, 2] = self.triples[2, 0]
        self.triples[3, 0] = self.triples[4, 2]
        train = np.ascontiguousarray(self.triples.numpy().astype(np.int32))
        more = torch.stack([torch.randint(0, high, (200,), generator=g) for high in (N, M, N)], dim=1)
        train = np.concatenate([train, more.numpy().astype(np.int32)])
        valid = (self.triples.numpy().astype(np.int32) + 1) % [N, M, N]  # known, but not to be masked
        self.graph = SimpleNamespace(
            train=Split("train", train, None),
            known=KnownTriples.build([train, valid], M),
            num_entities=N,
            num_relations=M,
            relation_weights=None,
        )
        self.weights = torch.rand(B, generator=g, dtype=torch.float64) * 2

    def relation_rows(self, model):
        return self.relations if model.relation_dim == D else self.angles

    def table(self, name, optimizer=None, model=None):
        relations = self.relation_rows(model) if model else self.relations
        weight = (self.entities if name == "entity" else relations).clone()
        optimizer = optimizer or Adagrad()
        state = {k: weight.new_zeros(s) for k, s in optimizer.state_shapes(*weight.shape).items()}
        return LocalTable(name, weight, state, optimizer)

    def relation_row(self, model, r, side):
        return r + M if model.reciprocal and side is Side.HEAD else r

    def scores(self, model, side, given, relation, candidates):
        """The scores float[k] of the triples that the candidates float[k, d] complete."""
        given, relation = given.expand(len(candidates), -1), relation.expand(len(candidates), -1)
        if side is Side.TAIL or model.reciprocal:
            return model.score_triples(given, relation, candidates)
        return model.score_triples(candidates, relation, given)


@pytest.fixture
def world():
    return World()
