"""The filter index of a graph of any size: ranges of entities are sorted in memory, one after the other."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kgexp.data.known import Answers, array_name, offsets_type
from kgexp.data.rowfile import PIECE, Int64, RowFile, Scatter, consecutive, pieces
from kgexp.data.sides import Side
from kgexp.threads import physical_cores

Triples = npt.NDArray[np.int32]

_GROUPS = 1 << 16
"""At most so many ranges of entities are told apart."""


def write_known(
    folder: Path,
    splits: Sequence[Triples],
    num_entities: int,
    num_relations: int,
    advance: Callable[[int], None],
    rows: int = PIECE,
) -> None:
    """Writes the arrays of `KnownTriples.build(splits, num_relations)` into a folder, each as `NAME.npy`.

    For a side the triples are scattered by their given entity to a temporary file of 13 bytes a triple, whose
    parts are then sorted in memory. All triples of an entity are in one part. Where there are two cores, each does
    one side.

    Args:
        folder: gets the files; the temporary ones go there too.
        splits: int32[N, 3] triples of each split; split i gets bit `1 << i`.
        num_entities: n.
        num_relations: m.
        advance: called with the triples of every piece, twice for each side; by one thread at a time.
        rows: about so many triples of a side are in memory at a time; the result does not depend on it.
    """
    groups, lock = _Groups(splits, num_entities, rows), threading.Lock()

    def advance_alone(done: int) -> None:
        with lock:
            advance(done)

    def write(side: Side) -> None:
        _write_side(folder, side, splits, num_relations, groups, advance_alone, rows)

    with ThreadPoolExecutor(min(len(Side), physical_cores())) as pool:
        list(pool.map(write, Side))


def _write_side(
    folder: Path,
    side: Side,
    splits: Sequence[Triples],
    num_relations: int,
    groups: "_Groups",
    advance: Callable[[int], None],
    rows: int,
) -> None:
    scratch = folder / f"known_{side.label}_triples.tmp", folder / f"known_{side.label}_bits.tmp"
    with RowFile(scratch[0], np.int32, (3,)) as triples, RowFile(scratch[1], np.uint8) as bits:
        starts, part = groups.parts(side)
        scatter = Scatter(starts[:-1], (triples, bits))
        for i, split in enumerate(splits):
            for piece in pieces(split, rows):
                of_piece = part.take(piece[:, side.given] >> groups.shift)
                scatter.add(of_piece, (piece, np.full(len(piece), 1 << i, np.uint8)))
                advance(len(piece))
        _sort(folder, side, triples, bits, starts, num_relations, advance)
    for path in scratch:
        path.unlink()


class _Groups:
    """Entities in ranges of `2 ** shift` ids each, and how many triples have one of a range on a side."""

    def __init__(self, splits: Sequence[Triples], num_entities: int, rows: int) -> None:
        self.shift = max(0, (num_entities - 1).bit_length() - (_GROUPS - 1).bit_length())
        self._rows = rows
        self._sizes = {side: np.zeros(((num_entities - 1) >> self.shift) + 1, np.int64) for side in Side}
        for split in splits:
            for piece in pieces(split, rows):
                for side, sizes in self._sizes.items():
                    sizes += np.bincount(piece[:, side.given] >> self.shift, minlength=len(sizes))

    def parts(self, side: Side) -> tuple[Int64, Int64]:
        """Cuts the triples of a side into parts: int64[p + 1] where they begin, and int64[g] the part of a group."""
        sizes = self._sizes[side]
        cuts = consecutive(sizes, self._rows)
        starts = np.concatenate([[0], np.cumsum(sizes)])[cuts]
        return starts, np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))


def _sort(
    folder: Path,
    side: Side,
    triples: RowFile,
    bits: RowFile,
    starts: Int64,
    num_relations: int,
    advance: Callable[[int], None],
) -> None:
    """Sorts the parts of scattered triples, and writes the answers of a side."""
    types: dict[str, npt.DTypeLike] = {
        "keys": np.int64,
        "offsets": offsets_type(len(triples)),
        "entities": np.int32,
        "splits": np.uint8,
    }
    with ExitStack() as stack:
        files = {
            field.name: stack.enter_context(RowFile(folder / f"{array_name(side, field.name)}.npy", types[field.name]))
            for field in fields(Answers)
        }
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            answers = Answers.of(side, triples.read(start, stop), bits.read(start, stop), num_relations)
            before = len(files["entities"])
            for name, file in files.items():
                if name == "offsets":
                    file.append(answers.offsets[:-1] + np.int64(before))
                else:
                    file.append(getattr(answers, name))
            advance(stop - start)
        files["offsets"].append(np.array([len(files["entities"])]))
