"""Loading a data set: from the `dataset` group of the configuration to a graph, through the cache."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kgexp.data import cache, files, splitting
from kgexp.data.encoding import encode
from kgexp.data.files import SPLITS, Source
from kgexp.data.graph import RELATION_TYPES, Graph, Split, open_graph, write_graph
from kgexp.data.layout import Layout
from kgexp.data.reading import read
from kgexp.data.relation_types import RelationTypes
from kgexp.data.relation_weights import read_relation_weights
from kgexp.data.splitting import Shares
from kgexp.data.vocabulary import EntityType, Vocabulary, shuffled
from kgexp.errors import DataError
from kgexp.world import World

FORMAT_VERSION = 1
"""Part of every fingerprint: goes up when the ids, the splits or the files of the cache change."""

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
    """Reads the source and writes its graph into an empty folder; returns the index of the folder."""
    columns = []
    for _, path in source.files:
        say(f"Reading {path}")
        columns.append(read(path, layout))
    encoded = encode(columns)
    parts = {
        role: Split(role, triples, column.weights)
        for (role, _), triples, column in zip(source.files, encoded.triples, columns, strict=True)
    }
    del columns
    notes: list[str] = []
    if shares is not None:
        parts, notes = _cut(parts[files.WHOLE], shares)
    weights = parts["train"].weights
    if weights is not None and not weights.any():
        raise DataError(f"{source.path}: every weight of train is 0, so nothing would be learnt; mend the weights.")

    say(f"Indexing {sum(map(len, parts.values())):,} triples of {len(encoded.entities):,} entities")
    # Relations are few and keep the order of first appearance.
    relations = Vocabulary(encoded.relations, "relation")
    of_entities: npt.NDArray[np.int32] | None = None
    ranges: list[EntityType] = []
    if types is not None:
        triples = [part.triples for part in parts.values()]
        of_entities, ranges = _types(folder, types, triples, Vocabulary(encoded.entities), relations)
        notes.append(f"types of entities: {', '.join(f'{stop - start:,} {name}' for name, start, stop in ranges)}")
    order, ids = shuffled(len(encoded.entities), of_entities)
    splits = {name: _with_ids(parts.get(name, _empty(name, layout)), ids) for name in SPLITS}
    entities = Vocabulary(encoded.entities.take(order), "entity", ranges)
    return {"version": FORMAT_VERSION, **write_graph(folder, splits, entities, relations, tuple(notes))}


def _types(
    folder: Path,
    path: Path,
    triples: Iterable[npt.NDArray[np.int32]],
    entities: Vocabulary,
    relations: Vocabulary,
) -> tuple[npt.NDArray[np.int32], list[EntityType]]:
    """The type int32[n] of every entity, and the types' ranges of ids; writes those of relations into the folder."""
    types = RelationTypes.read(path, relations)
    np.save(folder / f"{RELATION_TYPES}.npy", types.ends, allow_pickle=False)
    of_entities = types.of_entities(triples, len(entities), entities.name, relations.name)
    return of_entities, types.ranges(of_entities)


def _cut(whole: Split, shares: Shares) -> tuple[dict[str, Split], list[str]]:
    """The three splits of one file, each in the order of the file."""
    split, notes = splitting.assign(whole.triples, shares)
    parts = {}
    for i, name in enumerate(SPLITS):
        rows = np.flatnonzero(split == i)
        weights = None if whole.weights is None else whole.weights[rows]
        parts[name] = Split(name, whole.triples[rows], weights)
    return parts, notes


def _empty(name: str, layout: Layout) -> Split:
    return Split(name, np.empty((0, 3), np.int32), np.empty(0) if layout.weighted else None)


def _with_ids(split: Split, ids: np.ndarray[Any, np.dtype[np.int32]]) -> Split:
    """The split with entity numbers replaced by their ids int32[n]."""
    triples = split.triples.copy()
    triples[:, 0::2] = ids[triples[:, 0::2]]
    return Split(split.name, triples, split.weights)
