"""From a resolved configuration and a graph to the objects of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kgexp.build import build
from kgexp.data.buckets import Buckets, count_buckets, obtain_buckets
from kgexp.data.graph import Graph
from kgexp.evaluation.evaluator import Evaluator
from kgexp.optim.averaged import Averaged
from kgexp.optim.base import RowOptimizer
from kgexp.randomness import Purpose, key
from kgexp.scoring.share import ALL, Share
from kgexp.sharding.base import Sharding
from kgexp.sharding.partitioned import PartitionedSharding
from kgexp.sharding.rows import Placement, TableSpec
from kgexp.sharding.table import Table
from kgexp.storage.base import Storage
from kgexp.team import ONE, Team
from kgexp.train.batches import Batches
from kgexp.train.estimator import Estimator
from kgexp.train.init_from import Earlier, Initial
from kgexp.train.memory import Estimate
from kgexp.train.queries import QueryBatches
from kgexp.train.step import Objective
from kgexp.train.visits import MILLION, Cut, VisitBatches
from kgexp.world import ALONE as ONE_PROCESS
from kgexp.world import World


@dataclass(frozen=True)
class Parts:
    """What the configuration names, built; tables come later, once they are known to fit.

    Attributes:
        config: the resolved configuration.
        graph: the data.
        objective: model, technique, losses and regulariser.
        device, dtype: of computing, and of the tables unless the configuration says otherwise.
        sharding: who owns the rows; connected.
        world: the ranks of the job.
        buckets: the triples of train by where their entities are, where these are in partitions and steps are made of
            triples.
    """

    config: dict[str, Any]
    graph: Graph
    objective: Objective
    device: torch.device
    dtype: torch.dtype
    sharding: Sharding
    world: World
    buckets: Buckets | None = None

    @classmethod
    def of(
        cls,
        config: dict[str, Any],
        graph: Graph,
        device: torch.device,
        world: World = ONE_PROCESS,
        say: Callable[[str], None] = lambda line: None,
    ) -> "Parts":
        """Builds them, and connects the ranks of the job; `say` is told of what takes a while.

        Raises:
            ConfigError: a class does not take the options that the configuration gives it.
        """
        make = partial(build, plugins=config["plugins"])
        objective = Objective(
            model=make(config["model"]),
            scoring=make(config["scoring"]),
            loss=make(config["loss"]),
            regularizer=make(config["regularizer"]),
            num_relations=graph.num_relations,
            seed=config["seed"],
            auxiliary=make(config["auxiliary"]),
        )
        objective.scoring.prepare(graph)
        sharding: Sharding = make(config["sharding"])
        sharding.open(world, device)
        cache = config["dataset"]["cache"]
        sort = partial(obtain_buckets, cache=None if cache is None else Path(cache).expanduser(), say=say)
        buckets = _buckets(graph, objective, sharding, sort)
        return cls(config, graph, objective, device, getattr(torch, config["train"]["dtype"]), sharding, world, buckets)

    def supposing(self, config: dict[str, Any], ranks: int) -> "Parts":
        """The same under another choice of `sharding`, of one of so many ranks that nobody starts. It knows what a run
        would take and when what happens; its ranks exchange nothing, and its partitions have no triples to train."""
        sharding: Sharding = build(config["sharding"], plugins=config["plugins"])
        sharding.suppose(ranks)
        buckets = _buckets(self.graph, self.objective, sharding, count_buckets)
        return replace(self, config=config, sharding=sharding, buckets=buckets)

    @property
    def share(self) -> Share:
        """The part of every batch that this rank trains; trainers of partitions have batches of their own."""
        if isinstance(self.sharding, PartitionedSharding):
            return ALL
        return Share(self.sharding.exchange.rank, self.sharding.exchange.ranks)

    def estimate(self, storage: Storage) -> Estimate:
        """The memory that training and evaluation will take on a rank, with tables in `storage`."""
        batches = None if self.buckets is None else self.batches()
        triples = batches.kept_bytes if isinstance(batches, VisitBatches) else 0
        placement, (optimizer, _) = self._placement, self.optimizers()
        of = Estimator(self.config, self.graph, self.objective, self.sharding, placement, optimizer, triples)
        return of.estimate(storage)

    def tables(self, storage: Storage, earlier: Earlier | None = None) -> tuple[Table, Table]:
        """New entity and relation tables, their rows drawn for the run's seed unless an earlier run had them."""
        entity, relation = self.table_specs(storage, earlier)
        return self.sharding.entity_table(entity), self.sharding.relation_table(relation)

    def table_specs(self, storage: Storage, earlier: Earlier | None = None) -> tuple[TableSpec, TableSpec]:
        """What the tables of entities and relations are to be; none of their rows is drawn yet."""
        model, seed, n = self.objective.model, self.config["seed"], self.graph.num_entities
        make = partial(TableSpec, storage=storage, placement=self._placement, seed=seed, team=self._team)
        entities: Initial = partial(model.initial_entities, key(seed, Purpose.ENTITY_INIT), num_rows=n)
        relations: Initial = partial(
            model.initial_relations, key(seed, Purpose.RELATION_INIT), num_rows=self._relation_rows
        )
        if earlier is not None:
            entities, relations = earlier.entity.over(entities), earlier.relation.over(relations)
        of_entities, of_relations = self.optimizers()
        entity = make("entity", n, model.dim, entities, of_entities)
        relation = make("relation", self._relation_rows, model.relation_dim, relations, of_relations)
        return entity, relation

    def batches(self, share: Share | None = None) -> Batches | QueryBatches | VisitBatches:
        """The batches of the run: of triples, or of queries where these are the technique's examples. Of each the
        given share, by default that of this rank."""
        size, seed, scoring = self.config["train"]["batch_size"], self.config["seed"], self.objective.scoring
        share = share or self.share
        sharding = self.sharding
        if isinstance(sharding, PartitionedSharding) and self.buckets is not None:
            n = self.graph.num_entities
            return VisitBatches(
                self.buckets,
                sharding.slices(n),
                sharding.itinerary(n, seed),
                size,
                seed,
                self.dtype,
                self.graph.relation_weights,
                Cut(sharding.chunks, min(round(sharding.holdout * MILLION), MILLION - 1)),
                sharding.ahead(n),
                share,
                sharding.cut(n).slice_types,
            )
        if scoring.by_query:
            return QueryBatches(self.graph, scoring.sides, size, seed, self.dtype, share)
        graph = self.graph
        kinds = None if graph.relation_types is None else graph.kinds
        return Batches(graph.train, size, seed, self.dtype, graph.relation_weights, share, kinds)

    def evaluator(
        self, entity: Table, relation: Table, say: Callable[[str], None], progress: Callable[[int, int], None]
    ) -> Evaluator:
        """The evaluator of the tables."""
        model = self.objective.model
        return Evaluator(
            self.config["evaluation"],
            model,
            entity,
            relation,
            self.graph,
            say,
            progress,
            seed=self.config["seed"],
            world=self.world,
        )

    @property
    def validates(self) -> bool:
        """Whether the validation split is ranked during training."""
        return "valid" in self.config["evaluation"]["splits"] and len(self.graph.valid) > 0

    @property
    def _team(self) -> Team:
        """The threads that share a step; HOGWILD workers have steps of their own, a GPU threads of its own."""
        shared = self.device.type == "cpu" and getattr(self.sharding, "workers", 1) == 1
        return Team(torch.get_num_threads()) if shared else ONE

    @property
    def _placement(self) -> Placement:
        """Of the tables' numbers, as far as it does not depend on the sharding."""
        weight, state = (self.config["train"][name] for name in ("table_dtype", "state_dtype"))
        return Placement(self.device, self.dtype, weight and getattr(torch, weight), state and getattr(torch, state))

    @property
    def _relation_rows(self) -> int:
        return self.objective.model.num_relation_rows(self.graph.num_relations)

    def optimizers(self) -> tuple[RowOptimizer, RowOptimizer]:
        """New ones, of the entity table and of the relation table."""
        shared = dict(self.config["optimizer"])
        lr = shared.pop("relation_lr", None)  # another package's optimizer need not have the key, nor `max_norm`
        make = partial(build, plugins=self.config["plugins"])
        model, regularizer = self.objective.model, self.objective.regularizer
        of_entities: RowOptimizer = make(shared | ({} if model.max_norm is None else {"max_norm": model.max_norm}))
        of_relations: RowOptimizer = make(shared | ({} if lr is None else {"lr": lr}))
        if self.config["averaging"]["start"] is not None:
            of_entities, of_relations = Averaged(of_entities), Averaged(of_relations)
        if regularizer is not None:
            of_entities.penalty, of_relations.penalty = regularizer.row_gradients(model)
        return of_entities, of_relations


def _buckets(
    graph: Graph, objective: Objective, sharding: Sharding, find: Callable[[Graph, Sequence[int]], Buckets]
) -> Buckets | None:
    """Those of `Parts.buckets`, by their bounds; tells the sharding how entities are divided into types first."""
    if not isinstance(sharding, PartitionedSharding):
        return None
    sharding.divide(graph.entities.types, graph.kinds.joined)
    return None if objective.scoring.by_query else find(graph, sharding.slices(graph.num_entities).bounds)
