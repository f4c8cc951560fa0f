"""Trains the small model whose metrics `pykeen_metrics.json` records: ComplEx on UMLS, in plain torch.

    python tests/reference/make_fixture.py FOLDER_OF_UMLS

writes `umls_complex.npz` beside this file: `entity` float32[n, 16], `relation` float32[2m, 16] (rows from m
on are those of the inverse relations), and the splits `train`, `valid`, `test` as uint8[N, 3].
"""

import sys
from pathlib import Path

import numpy as np
import torch

DIM, EPOCHS, BATCH = 16, 40, 500


def read(folder):
    names = {}
    splits = {}
    for split in ("train", "valid", "test"):
        lines = [line.split("\t") for line in (folder / f"{split}.txt").read_text(encoding="utf-8").splitlines()]
        splits[split] = np.array(
            [
                [
                    names.setdefault((kind, name), sum(k == kind for k, _ in names))
                    for kind, name in zip("ere", line, strict=True)
                ]
                for line in lines
            ],
            dtype=np.uint8,
        )
    return splits, sum(k == "e" for k, _ in names), sum(k == "r" for k, _ in names)


def query(entity, relation):
    (a, b), (c, d) = entity.chunk(2, -1), relation.chunk(2, -1)
    return torch.cat([a * c - b * d, a * d + b * c], -1)


def train(triples, n, m):
    torch.manual_seed(0)
    triples = torch.from_numpy(triples.astype(np.int64))
    turned = torch.stack([triples[:, 2], triples[:, 1] + m, triples[:, 0]], 1)
    both = torch.cat([triples, turned])
    entity = (0.1 * torch.randn(n, DIM)).requires_grad_()
    relation = (0.1 * torch.randn(2 * m, DIM)).requires_grad_()
    optimizer = torch.optim.Adagrad([entity, relation], lr=0.1)
    for _ in range(EPOCHS):
        for batch in both[torch.randperm(len(both))].split(BATCH):
            scores = query(entity[batch[:, 0]], relation[batch[:, 1]]) @ entity.T
            loss = torch.nn.functional.cross_entropy(scores, batch[:, 2])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return entity.detach().numpy(), relation.detach().numpy()


if __name__ == "__main__":
    splits, n, m = read(Path(sys.argv[1]))
    entity, relation = train(splits["train"], n, m)
    np.savez_compressed(Path(__file__).with_name("umls_complex.npz"), entity=entity, relation=relation, **splits)
