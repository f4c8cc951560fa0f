"""A step as it is defined, one example after another: its loss, its penalty and what dropout keeps."""

from dataclasses import replace

import torch
from plain_losses import Sgd, plain_loss

from kgexp.data.sides import Side
from kgexp.models.complex import ComplEx
from kgexp.models.rotate import RotatE
from kgexp.randomness import Purpose, bits, key
from kgexp.scoring.regularizers import N3, Lp
from kgexp.train.step import train_step


def factors(p, stream, counter, d):
    """What dropout multiplies the row of a counter by: 16 bits of a hash, as a signed number, for each column."""
    least = round(p * 65536)
    hashes = -(-d // 4)
    words = bits(stream, range(counter * hashes, (counter + 1) * hashes)).tolist()
    lanes = [word >> shift & 65535 for word in words for shift in (0, 16, 32, 48)]
    kept = [(lane + 32768) % 65536 >= least for lane in lanes[:d]]
    return torch.tensor(kept, dtype=torch.float64) / (1 - least / 65536)


class PlainStep:
    """The step of `objective` on `batch`; `answers` gives a query's, of its side and triple, where they are a set."""

    def __init__(self, world, objective, batch, answers=None):
        self.world, self.objective = world, objective
        self.batch = objective.scoring.choose(batch, objective.seed)
        self.drawn = objective.scoring.candidates(self.batch, world.n, objective.seed)
        self.answers = answers or (lambda side, h, r, t: [t if side is Side.TAIL else h])
        self.train = {tuple(triple) for triple in world.graph.train.triples.tolist()}
        self.examples = [
            (side, x, i, *self.batch.triples[i].tolist())
            for side in objective.scoring.sides
            for x, i in enumerate(
                range(len(self.batch)) if self.batch.examples is None else self.batch.examples[side].tolist()
            )
        ]

    def weight(self, i):
        return 1.0 if self.batch.weights is None else self.batch.weights[i]

    def factors(self, purpose, counter, d, *parts):
        p = getattr(self.objective.model, purpose.name.lower())
        return factors(p, key(self.objective.seed, purpose, self.batch.step, *parts), counter, d)

    def loss(self, entities, relations):
        """The mean loss of the examples."""
        model = self.objective.model
        of_entities, of_relations = Purpose.ENTITY_DROPOUT, Purpose.RELATION_DROPOUT
        by_id = torch.stack([self.factors(of_entities, e, entities.shape[1]) for e in range(len(entities))])
        shared, total = entities * by_id, 0.0
        for side, x, i, h, r, t in self.examples:
            own = [
                entities[e] * self.factors(of_entities, i, entities.shape[1], s)
                for s, e in zip(Side, (h, t), strict=True)
            ]
            relation = relations[self.world.relation_row(model, r, side)]
            relation = relation * self.factors(of_relations, i, len(relation), side)
            if self.drawn:  # the answer and its chunk's negatives
                negatives = self.negatives(side, x, h, r, t)
                candidates, places = torch.cat([own[side][None], shared[negatives]]), [0]
            else:
                candidates, places = shared, sorted(self.answers(side, h, r, t))
            scores = self.world.scores(model, side, own[1 - side], relation, candidates)
            total = total + self.weight(i) * plain_loss(self.objective.loss, scores, places)
        return total / len(self.examples)

    def negatives(self, side, x, h, r, t):
        scoring = self.objective.scoring
        drawn = self.drawn[side].ids[x // scoring.chunk_size].tolist()
        completed = {e: (h, r, e) if side is Side.TAIL else (e, r, t) for e in drawn}
        if scoring.mask == "equal":
            return [e for e in drawn if completed[e] != (h, r, t)]
        return [e for e in drawn if scoring.mask == "none" or completed[e] not in self.train]

    def penalty(self, regularizer, entities, relations):
        """The penalty of the rows, which dropout does not touch: Σ of a row's powers times how often it counts."""
        model, n = self.objective.model, len(self.examples)
        ends, rows = [0.0] * len(entities), [0.0] * len(relations)
        for side, _, i, h, r, t in self.examples:
            row = self.world.relation_row(model, r, side)
            if regularizer.weighted:
                for counts, place in ((ends, h), (ends, t), (rows, row)):
                    counts[place] += float(self.weight(i)) / n
            else:
                rows[row] = 1.0
        if not regularizer.weighted:
            for e in self.touched():
                ends[e] = 1.0
        value = regularizer.weight * powers(regularizer, model, entities) @ torch.tensor(ends, dtype=torch.float64)
        if isinstance(model, RotatE):
            return value
        return value + regularizer.relation_weight * powers(regularizer, model, relations) @ torch.tensor(
            rows, dtype=torch.float64
        )

    def touched(self):
        """The entities whose rows the step updates."""
        if not self.drawn:
            return range(self.world.n)
        return torch.cat(
            [self.batch.triples[:, 0], self.batch.triples[:, 2]]
            + [part.ids.reshape(-1) for part in self.drawn.values()]
        ).tolist()


def powers(regularizer, model, rows):
    """What a regulariser sums for every row."""
    if isinstance(regularizer, N3) and isinstance(model, (ComplEx, RotatE)):
        re, im = rows.chunk(2, dim=1)
        return (re**2 + im**2).sqrt().pow(3).sum(dim=1)
    return rows.abs().pow(regularizer.p).sum(dim=1)


REGULARIZERS = [N3(0.05, 0.02), N3(0.05, weighted=False), Lp(1.5, 0.05), Lp(2.0, 0.05, 0.02, weighted=False)]


def assert_steps_are_plain(world, objective, batch, answers=None):
    """With any of the regularisers, a step of the program has the loss and the gradient of the plain one."""
    model, step = objective.model, PlainStep(world, objective, batch, answers)
    rows = [x.clone().requires_grad_() for x in (world.entities, world.relation_rows(model))]
    expected = step.loss(*rows)
    by_loss = torch.autograd.grad(expected, rows)
    for regularizer in REGULARIZERS:
        by_penalty = torch.autograd.grad(step.penalty(regularizer, *rows), rows, allow_unused=True)
        optimizers = Sgd(1.0), Sgd(1.0)
        for optimizer, penalty in zip(optimizers, regularizer.row_gradients(model), strict=True):
            optimizer.penalty = penalty
        tables = world.table("entity", optimizers[0]), world.table("relation", optimizers[1], model)
        value = train_step(replace(objective, regularizer=regularizer), *tables, batch)
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=0)
        for table, before, loss, penalty in zip(tables, rows, by_loss, by_penalty, strict=True):
            gradient = before.detach() - table.state_tensors()["weight"]
            torch.testing.assert_close(gradient, loss + (0 if penalty is None else penalty), rtol=1e-9, atol=1e-12)
