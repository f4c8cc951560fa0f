"""Whole runs of several trainers, which are threads of this process."""

import signal
import threading

from rank_threads import as_ranks

import kgexp.run as run_module
import kgexp.train.trainer as trainer_module
from kgexp.checkpoint.store import CheckpointStore
from kgexp.train.signals import StopSignal

QUIET = ("tracking.mode=disabled", "tracking.progress=none", "train.threads=1", "evaluation=none")


def run_by(ranks, config, folder, *, apart=False, resume=None):
    """Runs a configuration and returns its newest checkpoint; `apart`: each rank but the first has a folder of its
    own, as on a machine without a common file system."""
    folder.mkdir(exist_ok=True)

    def work(world):
        own = folder / f"rank{world.rank}" if apart and world.rank else folder
        try:
            run_module.run(config | {"resume": resume}, str(own), world)
        except SystemExit as ended:
            assert ended.code == 128 + signal.SIGTERM

    as_ranks(ranks, work)
    return CheckpointStore(folder / "checkpoints", 9).newest()


def steps_seen(monkeypatch, stop_after=()):
    """The steps that are trained from now on, in their order; whoever trains one of `stop_after` gets a SIGTERM, once
    for each of them."""
    step, left, seen, told = trainer_module.run_step, set(stop_after), [], set()

    def spy(objective, entity, relation, work, factor):
        seen.append(work.batch.step)
        if work.batch.step in left:
            left.discard(work.batch.step)
            told.add(threading.current_thread())
        return step(objective, entity, relation, work, factor)

    class Told(StopSignal):
        @property
        def noted(self):
            return signal.SIGTERM if threading.current_thread() in told else None

    monkeypatch.setattr(trainer_module, "run_step", spy)
    monkeypatch.setattr(run_module, "StopSignal", Told)
    return seen
