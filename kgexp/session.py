"""What happens in a run, in its order: load, prepare, train, evaluate, record."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from kgexp import environment
from kgexp.checkpoint.checkpoint import Checkpoint
from kgexp.checkpoint.store import CheckpointStore
from kgexp.checkpoint.together import by_first, together
from kgexp.data.graph import Graph
from kgexp.data.load import load_together
from kgexp.errors import CheckpointError, GivenUpError, sentence
from kgexp.evaluation.evaluator import Evaluation
from kgexp.evaluation.report import summary, write_tsv
from kgexp.rules import check_trainers
from kgexp.sharding.joint_table import JointTable
from kgexp.sharding.partitioned import PartitionedSharding
from kgexp.sharding.table import Table
from kgexp.storage.base import Storage
from kgexp.storage.blobs import LocalBlobs
from kgexp.tracking.callback import ProgressCallback
from kgexp.tracking.progress import Progress
from kgexp.tracking.tracker import MuteTracker, Tracker
from kgexp.train.assembly import Parts
from kgexp.train.equal import check_equal
from kgexp.train.init_from import earlier
from kgexp.train.note import Note
from kgexp.train.pruning import Pruning
from kgexp.train.record import Record
from kgexp.train.scheduling import TrainersLost
from kgexp.train.signals import StopRequested, StopSignal, strongest
from kgexp.train.stages import Stages
from kgexp.train.trainer import Trainer
from kgexp.train.trainer_assembly import trainer_of
from kgexp.world import World


class Session:
    """What happens in a run, in its order."""

    def __init__(
        self, config: dict[str, Any], path: Path, record: Record, world: World, store: CheckpointStore, common: bool
    ) -> None:
        self._config, self._path, self._record, self._world = config, path, record, world
        self._common = common
        self._mode = config["tracking"]["progress"] if world.rank == 0 else "none"
        self._stages = Stages(world)
        self._store = store
        self._checkpoint: Checkpoint | None = None
        known = None
        if config["resume"] is not None:
            self._checkpoint = self._store.newest(print if world.rank == 0 else lambda text: None)
            state = {} if self._checkpoint is None else self._checkpoint.state
            known = record.values.get("wandb_id") or state.get("wandb_id")
        elif by_first(world, "the run's folder", self._store.steps):
            raise CheckpointError(f"{self._store} holds checkpoints of another run: choose another folder.")
        self._store.sweep()  # the lock is held: nobody else writes there
        tracker = Tracker if world.rank == 0 else MuteTracker
        self._tracker = tracker(config["tracking"], path, config, wandb_id=known)
        self._say = self._tracker.say

    def execute(self, storage: Storage, stop: StopSignal) -> None:
        """All of it; what becomes known goes to the record at once."""
        config = self._config
        workers = config["sharding"].get("workers", 1)
        threads = environment.set_threads(config["train"]["threads"], self._world, workers)
        device = environment.choose_device(config["train"]["device"], local_rank=self._world.local_rank)
        if idle := environment.set_matmul(config["train"]["matmul_dtype"], device):
            self._say(idle)
        state_device = device
        if (name := config["sharding"].get("state_device")) is not None:
            state_device = environment.choose_device(name, "sharding.state_device", self._world.local_rank)
        if self._world.size > 1:
            check_trainers(config)
        if not self._common:
            self._say("machines have no folder in common: checkpoints and results are in the run folder of rank 0")
        with self._stages.stage("load"):
            graph = load_together(config["dataset"], self._world, self._say)
        for line in graph.report.lines():
            self._say(line)
        stop.check()
        with self._stages.stage("prepare"):
            parts = Parts.of(config, graph, device, self._world, self._say)
        environment.keep_freed_memory()
        with closing(parts.sharding):
            try:
                if isinstance(parts.sharding, PartitionedSharding) and self._world.size > 1:
                    parts.sharding.trainers.common = self._common or not isinstance(storage.blobs(), LocalBlobs)
                self._run(parts, graph, storage, stop, threads, state_device)
            except (TrainersLost, GivenUpError):
                raise  # the others go on
            except Exception as error:
                self._world.fail(sentence(error))  # before the others are let go: it is what they ask for
                raise

    def _run(
        self, parts: Parts, graph: Graph, storage: Storage, stop: StopSignal, threads: int, state_device: torch.device
    ) -> None:
        """With the ranks connected: what it takes, then all of it."""
        device = parts.device
        estimate = parts.estimate(storage)
        owners = parts.sharding.owners(graph.num_entities)
        if self._world.size > 1:
            self._say(owners.line("entity"))
        self._say(estimate.line())
        if graph.relation_types is not None and self._config["evaluation"]["splits"]:
            self._say("queries are ranked against the entities of the answer's type")
        # Before any rank takes its own: what is free is for all ranks of the machine.
        free, for_state = (self._free(place) for place in (device, state_device))
        with together(self._world, "memory"):
            estimate.check(free, parts.objective.model.dim, for_state)
        self._record.update(
            fingerprint=graph.fingerprint,
            data=graph.report.as_dict(),
            ranks=self._world.size,
            entity_bounds=owners.bounds,
            memory_estimate=estimate.total,
            **environment.describe(threads, device),
        )
        with self._tracker:
            self._record.update(wandb_id=self._tracker.wandb_id)
            with self._stages.stage("initialise"):
                # A checkpoint of its own holds all rows; the other run may be gone by then.
                begins = self._checkpoint is None and self._config["train"]["init_from"] is not None
                known = earlier(self._config, graph, owners, self._world, self._say) if begins else None
                entity, relation = parts.tables(storage, known)
            self._train_and_test(parts, graph, entity, relation, stop)
            self._world.barrier("the end")
            if not self._common:
                self._store.sweep()  # machines that have no checkpoints of their own need no rows any more

    def _free(self, device: torch.device) -> int | None:
        """Bytes that this rank may take on a device, of what it shares with others an equal part; None is unknown."""
        free = environment.available_memory(device)
        bounds = [name for names in self._world.gather("free memory", list(free)) for name in names]
        return min((left // bounds.count(name) for name, left in free.items()), default=None)

    def _train_and_test(self, parts: Parts, graph: Graph, entity: Table, relation: Table, stop: StopSignal) -> None:
        tables = {"entity": entity, "relation": relation}

        def save(step: int, state: dict[str, Any], alone: bool = False) -> None:
            if alone:
                if self._world.rank == 0:
                    write(self._store.alone(), step, state)
                self._world.broadcast("the checkpoint of those that are left")
                return
            for table in tables.values():
                check_equal(table, self._world)
            write(self._store, step, state)

        def write(store: CheckpointStore, step: int, state: dict[str, Any]) -> None:
            state |= {
                "fingerprint": graph.fingerprint,
                "wandb_id": self._tracker.wandb_id,
                "rows": self._tracker.rows,
                "seconds": self._stages.seconds,
            }
            store.save(step, tables, state, self._config, graph.vocabulary_files)

        one_each = [1] * self._world.size

        def noted() -> Tensor:
            return torch.tensor([stop.noted or 0])

        show = ProgressCallback(self._mode, "queries", "rank")

        def ranked(done: int, total: int) -> None:
            show(done, total)
            stop.adopt(strongest(parts.sharding.exchange.all_gather(noted(), one_each).tolist()))
            stop.check()

        evaluator = parts.evaluator(entity, relation, self._say, ranked)
        trainer = trainer_of(parts, entity, relation, evaluator, self._tracker, self._stages, save, stop)
        note = Note.read(self._path)  # which machines apart do not have
        told = by_first(self._world, "the note of the sweep", lambda: None if note is None else asdict(note))
        if told is not None and told["study"] is not None:
            trainer.judge = Pruning(self._path, Note(**told), self._world)
        self._restore(trainer, graph, tables)
        # What went before takes some ranks longer than others; from here on they wait for each other in collectives.
        self._world.barrier("the start of training")
        try:
            self._train(trainer, stop)
            stop.check()
            if trainer.pruned:
                self._finish(trainer, "pruned", trainer.best_metrics)
                self._tracker.summary(trainer.best_metrics | {"pruned": 1})
                self._say(f"pruned after {trainer.epoch:.1f} epochs: other trials fared better")
                return
            test = self._test(trainer, tables)
        except StopRequested:
            show.close()
            self._finish(trainer, "stopped", {})
            self._say(f"stopped at step {trainer.step}, saved; go on with resume={self._path}")
            return
        metrics = trainer.best_metrics | (test.metrics if test else {})
        self._finish(trainer, "finished", metrics)
        self._tracker.summary(metrics)
        self._show(metrics)

    def _test(self, trainer: Trainer, tables: dict[str, Table]) -> Evaluation | None:
        """Ranks the test split by the best checkpoint, the newest where there was no validation."""
        if "test" not in self._config["evaluation"]["splits"]:
            return None
        if trainer.best.step not in (None, trainer.step):
            self._say(f"testing the best checkpoint, of step {trainer.best.step}")
            best = self._store.of(trainer.best.step)
            self._load(best, tables)
            trainer.averaging.load_state_dict(best.state["averaging"])
        with self._stages.stage("test"), trainer.averaging.in_place():
            test = trainer.evaluator.evaluate("test")
        if test.metrics and self._world.rank == 0:
            write_tsv(self._path / "test_relations.tsv", test.relations)
        return test

    def _restore(self, trainer: Trainer, graph: Graph, tables: dict[str, Table]) -> None:
        """Goes back to the newest checkpoint of a run that is continued; otherwise to the very start."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            self._tracker.keep(0)
            return
        if checkpoint.state["fingerprint"] != graph.fingerprint:
            raise CheckpointError(
                f"{checkpoint} was trained on other data (fingerprint {checkpoint.state['fingerprint']}, now "
                f"{graph.fingerprint}): restore the files of dataset.path, dataset.relation_types and "
                "dataset.relation_weights, or start a new run"
            )
        self._load(checkpoint, tables)
        trainer.load_state_dict(checkpoint.state)
        self._stages.seconds = checkpoint.state["seconds"]
        self._tracker.keep(checkpoint.state["rows"])
        self._say(f"resuming after step {checkpoint.step}, from {checkpoint}")
        if trainer.finished:
            why = "patience has run out" if trainer.best.exhausted else f"the run is {trainer.plan.total} steps long"
            self._say(f"nothing left to train: {why}")

    def _load(self, checkpoint: Checkpoint, tables: dict[str, Table]) -> None:
        """Fills the tables with what a checkpoint has; where rank 0 alone can read it, it tells the others."""
        with together(self._world, "the checkpoint"):
            for table in tables.values():
                checkpoint.load(table)
        entity, relation = tables["entity"], tables["relation"]
        if not self._common and isinstance(entity, JointTable):
            entity.begin_at_first()
            entity.spread(relation.state_tensors().values())

    def _train(self, trainer: Trainer, stop: StopSignal) -> None:
        """Trains, with a progress in triples."""
        per_step = trainer.triples_per_step
        total, done = round(trainer.plan.total * per_step), round(trainer.step * per_step)
        with Progress(self._mode, total, description="train", done=done) as progress:
            trainer.fit(progress, stop)

    def _finish(self, trainer: Trainer, status: str, metrics: dict[str, float]) -> None:
        """Everything that is known at the end goes to the record."""
        seconds = self._stages.seconds
        name = trainer.evaluator.objective_name
        peaks = self._world.gather("the peak memory", environment.peak_rss())
        self._record.update(
            status=status,
            step=trainer.step,
            epoch=trainer.epoch,
            best_step=trainer.best.step,
            objective_name=name,
            objective=trainer.best_metrics.get(name),
            metrics=metrics,
            triples_per_second=trainer.trained / seconds["train"] if trainer.trained else None,
            seconds=seconds,
            peak_rss=max(peaks),
            peak_rss_of_ranks=peaks,
        )

    def _show(self, metrics: dict[str, float]) -> None:
        """The table that a run ends with, and where everything is."""
        if metrics and self._world.rank == 0:
            Console().print(summary(metrics))
        self._say(f"run folder: {self._path}")
        if self._tracker.sync_command is not None:
            self._say(f"upload to Weights & Biases: {self._tracker.sync_command}")
