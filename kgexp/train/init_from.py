"""`train.init_from`: rows that another run has trained, for the entities and relations whose names it knows.

All others are drawn as always, so that a graph that has grown goes on from what is known about it. Optimizer state is
not taken: the learning rate starts anew too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kgexp.checkpoint.checkpoint import Checkpoint
from kgexp.checkpoint.choosing import choose
from kgexp.checkpoint.together import together
from kgexp.data.graph import Graph
from kgexp.data.vocabulary import Vocabulary
from kgexp.errors import CheckpointError, KgexpError
from kgexp.randomness import Float64, Int64
from kgexp.sharding.owners import Owners
from kgexp.storage.shards import RowReader
from kgexp.world import World

#: What the rows of two runs have to have in common to mean the same.
_SAME = ("_target_", "dim", "reciprocal")

#: See `TableSpec.initial`.
Initial = Callable[[Int64], Float64]


@dataclass(frozen=True)
class KnownRows:
    """Rows of another run, for some of the rows of a table.

    Attributes:
        reader: of the other run's table.
        first: number of the first row that may be asked for.
        rows: int32[k], for each from there on the row of the other table, or -1 where it has none.
    """

    reader: RowReader
    first: int
    rows: npt.NDArray[np.int32]

    @classmethod
    def of(
        cls, checkpoint: Checkpoint, table: str, file: str, names: Vocabulary, first: int = 0, stop: int | None = None
    ) -> "KnownRows":
        """Those of a checkpoint's table, whose names are in `file`, for the names of the rows `first … stop - 1`; where
        it has several rows a name, all of these for as many rows of ours."""
        reader, others = checkpoint.tensor(table, checkpoint.model_weight), Vocabulary.load(checkpoint.path / file)
        n, named = reader.shape[0], max(1, len(others))
        if n % named:
            raise CheckpointError(f"{checkpoint.path}: {n} {table} rows have {named} names; take another checkpoint")
        rows = names.ids_in(others, first, stop)
        # The rows of inverse relations follow those of all relations.
        return cls(reader, first, np.concatenate([np.where(rows < 0, rows, rows + i) for i in range(0, n, named)]))

    @property
    def found(self) -> int:
        """How many rows there are."""
        return int((self.rows >= 0).sum())

    def over(self, drawn: Initial) -> Initial:
        """A function like `drawn` that gives the other run's rows where there are some."""

        def initial(ids: Int64) -> Float64:
            weights, rows = drawn(ids), self.rows[ids - self.first]
            known = rows >= 0
            weights[known] = self.reader.take(torch.from_numpy(rows[known].astype(np.int64))).double().numpy()
            return weights

        return initial


@dataclass(frozen=True)
class Earlier:
    """What a run takes over: rows of its entity table and of its relation table."""

    entity: KnownRows
    relation: KnownRows


def earlier(config: dict[str, Any], graph: Graph, owners: Owners, world: World, say: Callable[[str], None]) -> Earlier:
    """Opens what `train.init_from` names and finds the names that it has in common with the graph.

    A rank looks for the names of its own entities; that takes 12 bytes for each of them, and some 200 MB for a million
    names or more of the other run.

    Args:
        config: the resolved configuration.
        graph: the data of this run.
        owners: who owns its entity rows.
        world: the ranks, which all call this.
        say: is told what was found.

    Raises:
        CheckpointError: there is no checkpoint, its model is another one, or no entity has a name of the graph; on all
            ranks.
    """
    alone = owners.ranks == 1  # every rank has every row
    start, stop = owners.bounds[:2] if alone else owners.bounds[world.rank : world.rank + 2]
    with together(world, "train.init_from"):
        try:
            checkpoint = choose(Path(config["train"]["init_from"]).expanduser(), say=say)
            _check_model(checkpoint, config["model"])
            entity = KnownRows.of(checkpoint, "entity", "entities.arrow", graph.entities, start, stop)
            relation = KnownRows.of(checkpoint, "relation", "relations.arrow", graph.relations)
        except KgexpError as error:
            raise CheckpointError(f"train.init_from: {error}") from error
    found = world.gather("the names in common", entity.found)
    entities = found[0] if alone else sum(found)
    relations = relation.found * graph.num_relations // len(relation.rows)
    if not entities:
        raise CheckpointError(
            f"train.init_from: {checkpoint.path} knows none of the {graph.num_entities} entities of {graph.name} by "
            "name: give a run on a graph with the same names."
        )
    say(
        f"{entities:,} of {graph.num_entities:,} entities and {relations:,} of {graph.num_relations:,} relations begin "
        f"with vectors of step {checkpoint.step}, from {checkpoint.path}"
    )
    return Earlier(entity, relation)


def _check_model(checkpoint: Checkpoint, model: dict[str, Any]) -> None:
    other = checkpoint.config.get("model", {})
    for name in _SAME:
        if other.get(name) != model.get(name):
            raise CheckpointError(
                f"{checkpoint.path} has model.{name}={other.get(name)}, this run model.{name}={model.get(name)}: rows "
                "of one mean nothing to the other; choose the same model, or another run."
            )
