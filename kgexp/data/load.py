"""Loading a data set: from the `dataset` group of the configuration to a graph, through the cache."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kgexp.data import cache, files, splitting
from kgexp.data.ahead import in_order
from kgexp.data.encoding import Encoder, Triples, Weights
from kgexp.data.files import SPLITS, Source
from kgexp.data.graph import RELATION_TYPES, Graph, Split, open_graph, split_file, write_graph
from kgexp.data.layout import Layout
from kgexp.data.pace import Pace
from kgexp.data.reading import Columns, read
from kgexp.data.relation_types import RelationTypes
from kgexp.data.relation_weights import read_relation_weights
from kgexp.data.rowfile import RowFile, pieces
from kgexp.data.splitting import Shares
from kgexp.data.vocabulary import EntityType, Vocabulary, shuffled
from kgexp.errors import DataError
from kgexp.threads import physical_cores
from kgexp.world import World

FORMAT_VERSION = 1
"""Part of every fingerprint: goes up when the ids, the splits or the files of the cache change."""

Ids = npt.NDArray[np.int32]

_NUMBERS = "numbers"
"""What is in the temporary files of triples before all names are known."""

#: Triples looked at at a time.
_TRIPLES = 1 << 20


def _silent(message: str) -> None:
    pass


def load(dataset: Mapping[str, Any], say: Callable[[str], None] = _silent) -> Graph:
    """The graph of a data set: the first time read from its files into the cache, later only mapped.

    Weights of relations are read each time, so that they may change while the cache stays.

    Args:
        dataset: `name`, `path`, `columns`, `header`, `valid`, `test`, `split_seed`, `relation_types`,
            `relation_weights` and `cache`.
        say: is told, in a sentence each, about steps that may take a while.

    Raises:
        DataError: the files cannot be used; the message names the file and the line.
        ConfigError: an option of `dataset` cannot be used.
    """
    layout = Layout.of(dataset["columns"], bool(dataset["header"]))
    source = files.find(str(dataset["path"]))
    shares = Shares(dataset["valid"], dataset["test"], dataset["split_seed"]) if source.whole else None
    types = None if dataset["relation_types"] is None else Path(dataset["relation_types"]).expanduser()
    content = source if types is None else source.with_file(RELATION_TYPES, types)
    fingerprint = files.fingerprint([FORMAT_VERSION, layout, shares], content)
    place = None if dataset["cache"] is None else Path(dataset["cache"]).expanduser()
    folder = cache.obtain(place, fingerprint, lambda folder: _build(folder, source, layout, shares, types, say))
    graph = open_graph(folder, str(dataset["name"]), fingerprint)
    weights = dataset["relation_weights"]
    return graph if weights is None else _weighted(graph, Path(weights).expanduser())


def load_together(dataset: Mapping[str, Any], world: World, say: Callable[[str], None] = _silent) -> Graph:
    """`load` on every rank: on each machine one reads the files, and the others what it has left in the cache.

    Raises:
        DataError: also where ranks have read different data.
    """
    graph = load(dataset, say) if world.local_rank == 0 else None
    world.barrier("the data")
    graph = graph or load(dataset)
    for rank, fingerprint in enumerate(world.gather("the fingerprint of the data", graph.fingerprint)):
        if fingerprint != graph.fingerprint:
            raise DataError(
                f"rank {rank} has read other data (fingerprint {fingerprint}) than rank {world.rank} "
                f"({graph.fingerprint}): give the ranks the same files."
            )
    return graph


def _weighted(graph: Graph, path: Path) -> Graph:
    """The graph with weights of relations from a file; they are part of its fingerprint.

    Raises:
        DataError: the file cannot be used, or leaves nothing to train.
    """
    weights = read_relation_weights(path, graph.relations)
    if not _any_weighs(graph.train, weights):
        raise DataError(
            f"{path}: every triple of train gets the weight 0, so nothing would be learnt; give one of the relations "
            "of train a weight."
        )
    digest = hashlib.blake2b(f"{graph.fingerprint} ".encode() + weights.tobytes(), digest_size=16).hexdigest()
    return replace(graph, fingerprint=digest, relation_weights=weights)


def _any_weighs(split: Split, relation_weights: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    """Whether any triple has a weight and a relation that has one."""
    for start in range(0, len(split), _TRIPLES):
        piece = slice(start, start + _TRIPLES)
        live = relation_weights[split.triples[piece, 1]] > 0
        if split.weights is not None:
            live &= split.weights[piece] > 0
        if live.any():
            return True
    return False


def _build(
    folder: Path, source: Source, layout: Layout, shares: Shares | None, types: Path | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Reads the source and writes its graph into an empty folder; returns the index of the folder.

    In memory are the names, a few numbers for each, and blocks of triples; one file that is to be split is there
    as a whole.
    """
    encoder = Encoder()
    sources = dict(source.files)
    roles = tuple(sources) if source.whole else SPLITS
    for role in roles:
        blocks: Iterable[Columns] = ()
        if role in sources:
            say(f"Reading {sources[role]}")
            blocks = read(sources[role], layout)
        _write_numbers(folder, role, layout, encoder.encode(blocks), Pace(say, "Read"))

    say(f"Giving {len(encoder.entities):,} entities their ids")
    entities, places = encoder.entities.by_first_appearance()
    # Relations are few and keep the order of first appearance.
    relations, relation_ids = encoder.relations.by_first_appearance()
    of_relations = Vocabulary(encoder.relations.names(relations), "relation")
    notes: list[str] = []
    ranges: list[EntityType] = []
    if types is None:
        order, ids = shuffled(len(entities))
    else:
        of_numbers, ranges = _types(folder, types, roles, encoder, relation_ids, of_relations)
        order, ids = shuffled(len(entities), of_numbers[entities])
        notes = [f"types of entities: {', '.join(f'{stop - start:,} {name}' for name, start, stop in ranges)}"]
    with ThreadPoolExecutor(1) as thread:
        names = thread.submit(encoder.entities.names, entities[order])
        if shares is None:
            ids = ids[places]
            for role in SPLITS:
                _write_ids(folder, role, _opened(folder, role, _NUMBERS), ids, relation_ids)
        else:
            notes += _cut(folder, shares, places, relation_ids, ids)
    for path in folder.glob(f"*_{_NUMBERS}.npy"):
        path.unlink()
    if layout.weighted and not any(piece.any() for piece in pieces(_opened(folder, "train", "weights"))):
        raise DataError(f"{source.path}: every weight of train is 0, so nothing would be learnt; mend the weights.")

    of_entities = Vocabulary(names.result(), "entity", ranges)
    del encoder, entities, places, order, ids
    return {"version": FORMAT_VERSION, **write_graph(folder, of_entities, of_relations, tuple(notes), say)}


def _types(
    folder: Path, path: Path, roles: Iterable[str], encoder: Encoder, relation_ids: Ids, relations: Vocabulary
) -> tuple[Ids, list[EntityType]]:
    """The type int32[n] of every provisional number, and of each type its ids; writes the types of relations."""
    types = RelationTypes.read(path, relations)
    np.save(folder / f"{RELATION_TYPES}.npy", types.ends, allow_pickle=False)

    def triples() -> Iterator[Triples]:
        for role in roles:
            for piece in pieces(_opened(folder, role, _NUMBERS)):
                yield np.stack([piece[:, 0], relation_ids[piece[:, 1]], piece[:, 2]], axis=1)

    def name(number: int) -> str:
        return str(encoder.entities.names(np.array([number]))[0])

    of_numbers = types.of_entities(triples(), len(encoder.entities), name, relations.name)
    return of_numbers, types.ranges(of_numbers)


def _write_numbers(
    folder: Path, role: str, layout: Layout, encoded: Iterable[tuple[Triples, Weights | None]], pace: Pace
) -> None:
    """Writes the triples of a file, in provisional numbers, and its weights."""
    with ExitStack() as stack:
        triples = stack.enter_context(RowFile(split_file(folder, role, _NUMBERS), np.int32, (3,)))
        if layout.weighted:
            weights = stack.enter_context(RowFile(split_file(folder, role, "weights"), np.float64))
        for numbers, values in encoded:
            triples.append(numbers)
            if values is not None:
                weights.append(values)
            pace.advance(len(numbers))


def _write_ids(folder: Path, name: str, triples: Triples, ids: Ids, relation_ids: Ids) -> None:
    """Writes a split, with each number replaced by its id: int32[n] for entities, and int32[m]."""

    def with_ids(piece: Triples) -> Triples:
        found = np.empty_like(piece)
        for column, of_column in enumerate((ids, relation_ids, ids)):
            found[:, column] = of_column.take(piece[:, column])
        return found

    with RowFile(split_file(folder, name, "triples"), np.int32, (3,)) as file:
        for found in in_order(with_ids, pieces(triples), physical_cores()):
            file.append(found)


def _cut(folder: Path, shares: Shares, places: Ids, relation_ids: Ids, ids: Ids) -> list[str]:
    """Writes the three splits of one file, each in the order of the file; this takes the whole file into memory.

    Returns:
        Sentences about shares that could not be met.
    """
    # What a seed draws is decided by the order of first appearance, and not by blocks.
    h, r, t = _opened(folder, files.WHOLE, _NUMBERS).T
    triples = np.stack([places[h], relation_ids[r], places[t]], axis=1)
    split, notes = splitting.assign(triples, shares)
    weights = split_file(folder, files.WHOLE, "weights")
    kept = np.arange(len(relation_ids), dtype=np.int32)
    for i, name in enumerate(SPLITS):
        rows = np.flatnonzero(split == i)
        _write_ids(folder, name, triples.take(rows, axis=0), ids, kept)
        if weights.exists():
            np.save(split_file(folder, name, "weights"), np.load(weights, allow_pickle=False)[rows])
    weights.unlink(missing_ok=True)
    return notes


def _opened(folder: Path, split: str, what: str) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.load(split_file(folder, split, what), mmap_mode="r", allow_pickle=False)
    return array
