"""Writes a large synthetic graph that can be learnt, for tests and measurements of graphs that no memory holds.

    python -m kgexp.tools.generate FOLDER --entities 10_000_000 --triples 50_000_000

FOLDER gets `train.tsv`, `valid.tsv` and `test.tsv`, one triple a line: `e12`, `r3`, `e1234567` between tabs. Memory
does not grow with the graph, and the same options give the same bytes on the same machine.

* Popularity follows a power law: entity `e0` is the most popular one, and the i-th is drawn as a tail in proportion to
  i^-SKEW; as a head by half that exponent, for in real graphs what everything refers to are few, and what has a lot to
  refer to are more. Relations are drawn by i^-SKEW. Every entity is the head of a train triple at least once, and every
  relation occurs there.
* Entity i lies in cluster i mod CLUSTERS, and clusters lie on a ring. A relation leads a distance of its own around the
  ring, at most an eighth of it either way, and there to one of three neighbours. So a query has three clusters of
  answers, the popular entities of these first. Rotations can model that exactly; translations, all but a seam.
* A hash of a triple says which split it may be in: one in 32 of all possible triples is for validation, one for the
  test, and train has none of these. Triples of valid and test are distinct; popular ones of train come repeatedly.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kgexp.data.files import COMPRESSIONS, SPLITS
from kgexp.durable import sync
from kgexp.errors import ConfigError
from kgexp.randomness import Float64, Int64, Purpose, integers, key, uniform
from kgexp.tools.failing import failed
from kgexp.tracking.progress import Progress

#: Triples made at a time; they take some hundred bytes each.
_BLOCK = 1 << 18

#: Neighbouring clusters that a relation leads to.
_SPREAD = 3

#: The farthest that a relation leads: one part in so many of the ring.
_REACH = 8

#: One in so many triples belongs to each of valid and test.
_HELD_OUT = 32

#: Draws of a triple, each after one that the split may not have, before there seem to be no others.
_ATTEMPTS = 64

#: The most that may be asked for: an entity fits 31 bits, and the product of both 63.
_MOST_ENTITIES, _MOST_TRIPLES = 2**31 - 1, 2**32


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    options = _parser().parse_args(arguments)
    sizes = dict(zip(SPLITS, (options.triples, options.valid, options.test), strict=True))
    began = time.monotonic()
    try:
        clusters = options.clusters or max(1, round(options.entities**0.5))
        graph = SyntheticGraph(options.entities, options.relations, clusters, options.skew, options.seed)
        write(graph, options.folder, sizes, f".{options.compress}" if options.compress else "")
    except Exception as error:
        return failed(error, OSError)
    seconds, total = time.monotonic() - began, sum(sizes.values())
    print(
        f"{options.folder}: {options.entities:,} entities, {options.relations:,} relations, "
        f"{', '.join(f'{size:,} {split}' for split, size in sizes.items())} triples, "
        f"{total / max(seconds, 1e-9):,.0f} triples/s\n"
        f"train on it: python -m kgexp dataset=files dataset.path={options.folder} scoring=negatives loss=logistic"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m kgexp.tools.generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder")
    parser.add_argument("--entities", type=int, required=True)
    parser.add_argument("--triples", type=int, required=True, help="of train; at least one an entity and a relation")
    parser.add_argument("--relations", type=int, default=50, help="50")
    parser.add_argument("--skew", type=float, default=1.0, help="exponent of the popularity, 0 being none: 1")
    parser.add_argument("--clusters", type=int, help="the root of the number of entities")
    parser.add_argument("--valid", type=int, default=5000, help="triples of valid: 5000")
    parser.add_argument("--test", type=int, default=5000, help="triples of test: 5000")
    parser.add_argument("--seed", type=int, default=0, help="0")
    parser.add_argument("--compress", choices=[ending.removeprefix(".") for ending in COMPRESSIONS], help="the files")
    return parser


class PowerLaw:
    """Draws numbers of `low … high - 1` (real x in [low, high), rounded down) with a density of x^-skew.

    Args:
        low, high: scalars or float64[k] of as many ranges; low is above 0.
        skew: the exponent, 0 or more.
    """

    def __init__(self, low: npt.ArrayLike, high: npt.ArrayLike, skew: float) -> None:
        self._power = 1 - skew
        # The integral of the density, by which a uniform number is one of the law (and back in `__call__`).
        self._begin, end = (self._integral(np.asarray(x, np.float64)) for x in (low, high))
        self._span = end - self._begin
        self._last = np.asarray(high, np.int64) - 1

    def __call__(self, uniform: Float64, which: Int64 | None = None) -> Int64:
        """Numbers int64[b] for uniform ones float64[b], each of the range `which` int64[b] where there are several."""
        begin, span, last = (x if which is None else x[which] for x in (self._begin, self._span, self._last))
        y = begin + uniform * span
        x = np.exp(y) if self._power == 0 else y ** (1 / self._power)
        return np.minimum(x.astype(np.int64), last)  # rounding may reach the end

    def _integral(self, x: Float64) -> Float64:
        return np.log(x) if self._power == 0 else x**self._power


@dataclass(frozen=True)
class Triples:
    """Some triples by the numbers of their names: int64[b] each."""

    head: Int64
    relation: Int64
    tail: Int64

    def where(self, which: npt.NDArray[np.generic]) -> "Triples":
        """Those of a mask or of positions."""
        return Triples(self.head[which], self.relation[which], self.tail[which])


class SyntheticGraph:
    """The triples of the graph, each by its position alone: see the module.

    Args:
        entities, relations, clusters: how many.
        skew: exponent of the popularity.
        seed: of everything random.

    Raises:
        ConfigError: there cannot be such a graph.
    """

    def __init__(self, entities: int, relations: int, clusters: int, skew: float, seed: int) -> None:
        for name, value, most in (
            ("entities", entities, _MOST_ENTITIES),
            ("relations", relations, _MOST_ENTITIES),
            ("clusters", clusters, entities),
        ):
            if not 1 <= value <= most:
                raise ConfigError(f"--{name} is {value} but must be in 1 … {most}.")
        if not 0 <= skew <= 10:
            raise ConfigError(f"--skew is {skew} but must be in 0 … 10.")
        self.entities, self.relations, self.clusters, self.seed = entities, relations, clusters, seed
        self._heads = PowerLaw(1, entities + 1, skew / 2)
        self._relations = PowerLaw(1, relations + 1, skew)
        # The members of cluster c are the entities c, c + clusters, …; each stands for the numbers up to the next.
        c = np.arange(clusters)
        self._tails = PowerLaw(c + 1, c + 1 + clusters * ((entities - 1 - c) // clusters + 1), skew)
        reach = -(-clusters // _REACH)
        self._distances = integers(self._stream("distances"), np.arange(relations), 2 * reach + 1) - reach

    def train(self, start: int, stop: int, total: int) -> Triples:
        """The triples `start … stop - 1` of `total` in train. Entities and relations are spread over these in their
        order, each the head or the relation of one of them.

        Raises:
            ConfigError: what they are to be is not to be found.
        """
        positions = np.arange(start, stop)
        triples = Triples(*(np.empty(len(positions), np.int64) for _ in range(3)))
        left = np.arange(len(positions))
        for attempt in range(_ATTEMPTS):
            drawn = self._draw("train", attempt, positions[left], total)
            good = self._split(drawn) > 1
            for column, values in zip(_columns(triples), _columns(drawn.where(good)), strict=True):
                column[left[good]] = values
            left = left[~good]
            if not len(left):
                return triples
        raise ConfigError(f"the {self.clusters} clusters leave too few triples for train: give fewer --clusters.")

    def held_out(self, split: str, size: int) -> Triples:
        """`size` distinct triples for `valid` or `test`.

        Raises:
            ConfigError: there are not so many.
        """
        found = Triples(*(np.empty(0, np.int64) for _ in range(3)))
        for start in range(0, _BLOCK + 4 * _HELD_OUT * size, _BLOCK):
            drawn = self._draw(split, 0, np.arange(start, start + _BLOCK))
            mine = drawn.where(self._split(drawn) == SPLITS.index(split) - 1)
            found = Triples(*map(np.concatenate, zip(_columns(found), _columns(mine), strict=True)))
            found = found.where(np.sort(np.unique(np.stack(_columns(found)), axis=1, return_index=True)[1]))
            if len(found.head) >= size:
                return found.where(np.arange(size))
        raise ConfigError(f"there are too few triples for --{split} {size}: lower it, or give more --entities.")

    def _draw(self, split: str, attempt: int, positions: Int64, total: int = 0) -> Triples:
        """A triple for each position; of a split of `total` triples some are for a certain entity or relation."""
        h, r, c, t = (uniform(self._stream(split, attempt, part), positions) for part in range(4))
        head, relation = self._heads(h) - 1, self._relations(r) - 1
        if total:
            head = _spread(positions, self.entities, total, head)
            relation = _spread(positions, self.relations, total, relation)
        cluster = (head + self._distances[relation] + (c * _SPREAD).astype(np.int64)) % self.clusters
        x = self._tails(t, cluster)
        return Triples(head, relation, x - 1 - (x - 1 - cluster) % self.clusters)

    def _split(self, triples: Triples) -> Int64:
        """0 for triples of valid, 1 for those of test, more for those of train."""
        pairs = triples.head.astype(np.uint64) * np.uint64(self.relations) + triples.relation.astype(np.uint64)
        number = pairs * np.uint64(self.entities) + triples.tail.astype(np.uint64)  # a hash does not mind the overflow
        return integers(self._stream("splits"), number, _HELD_OUT)

    def _stream(self, what: str, *numbers: int) -> int:
        return key(self.seed, Purpose.SYNTHETIC, *what.encode(), *numbers)


def _columns(triples: Triples) -> tuple[Int64, Int64, Int64]:
    return triples.head, triples.relation, triples.tail


def _spread(positions: Int64, count: int, total: int, otherwise: Int64) -> Int64:
    """The numbers 0 … count - 1 evenly over the positions 0 … total - 1, and `otherwise` in between."""
    number = positions * count // total
    return np.where(number < (positions + 1) * count // total, number, otherwise)


def lines(triples: Triples) -> pa.Buffer:
    """The triples as text, a line each."""
    head, relation, tail = (pc.cast(pa.array(column), pa.string()) for column in _columns(triples))
    texts = pc.binary_join_element_wise("e", head, "\tr", relation, "\te", tail, "\n", "")
    _, offsets, text = texts.buffers()  # the texts lie one behind the other
    return text.slice(0, int(np.frombuffer(offsets, np.int32)[len(texts)]))


def write(graph: SyntheticGraph, folder: Path, sizes: dict[str, int], ending: str = "", block: int = _BLOCK) -> None:
    """Writes the files of a graph into a new folder, which appears when they are whole.

    Args:
        graph: the graph.
        folder: must not exist.
        sizes: triples of each split; one without any gets no file.
        ending: `.gz` or `.zst` to compress the files.
        block: triples made at a time; changes no byte of the text.

    Raises:
        ConfigError: the folder exists, or there are too few or too many triples.
        OSError: the disk is full, or worse; no folder is left.
    """
    total, least = sizes["train"], max(graph.entities, graph.relations)
    if not least <= total <= _MOST_TRIPLES:
        raise ConfigError(
            f"--triples is {total} but must be in {least} … {_MOST_TRIPLES}, so that all entities and relations occur."
        )
    with _appearing(folder) as part:
        for split, size in sorted(sizes.items(), key=lambda item: item[1]):  # refused soon, if at all
            if size:
                pieces = _train(graph, size, block) if split == "train" else iter([graph.held_out(split, size)])
                path = part / f"{split}.tsv{ending}"
                with pa.output_stream(str(path), compression=COMPRESSIONS.get(ending)) as file:
                    for triples in pieces:
                        file.write(lines(triples))
                sync(path)


def _train(graph: SyntheticGraph, total: int, block: int) -> Iterator[Triples]:
    with Progress("auto", total, "triples", "train") as progress:
        for start in range(0, total, block):
            stop = min(start + block, total)
            yield graph.train(start, stop, total)
            progress.advance(stop - start)


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A folder that has its name once it is whole and on the disk, and is gone after an error."""
    if folder.exists():
        raise ConfigError(f"{folder} exists: choose a new folder.")
    part = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    part.mkdir(parents=True)
    try:
        yield part
        sync(part)
        os.rename(part, folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
