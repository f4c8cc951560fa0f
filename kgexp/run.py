"""One run, from a resolved configuration to `result.json`: its folder, its record, and who goes on without the lost."""

from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from kgexp.build import build
from kgexp.checkpoint.remote import RemoteCheckpointStore
from kgexp.checkpoint.store import CheckpointStore
from kgexp.errors import ConfigError, sentence
from kgexp.session import Session
from kgexp.storage.base import Storage
from kgexp.storage.blobs import LocalBlobs
from kgexp.train.common_folder import is_common
from kgexp.train.lock import run_lock
from kgexp.train.record import Record
from kgexp.train.scheduling import TrainersLost
from kgexp.train.signals import StopRequested, StopSignal
from kgexp.world import ALONE, World


def run(config: dict[str, Any], folder: str, world: World = ALONE) -> float | None:
    """Trains and evaluates what the configuration says; goes on from the folder's newest checkpoint if it resumes.

    Args:
        config: resolved, plain values; checked by `kgexp.check`.
        folder: the run's own, where everything it makes goes.
        world: the ranks that run it together; the first of them writes and speaks.

    Returns:
        The best validation objective, for sweepers; None without a validation.

    Raises:
        KgexpError: what went wrong, in a sentence; `result.json` says so too.
        SystemExit: a signal stopped the run, after it had saved.
    """
    path = Path(folder)
    first = world.rank == 0
    with run_lock(path) if first else nullcontext(), StopSignal(shared=world.size > 1) as stop:
        record = Record(path, written=first)
        record.update(status="running", error=None, folder=folder, seed=config["seed"])
        try:
            _run(config, path, record, world, stop)
        except StopRequested:
            record.update(status="stopped")
        except BaseException as error:
            record.update(status="failed", error=sentence(error))
            raise
        if record.values["status"] == "stopped":
            stop.finish()
    objective: float | None = record.values.get("objective")
    return objective


def _run(config: dict[str, Any], path: Path, record: Record, world: World, stop: StopSignal) -> None:
    """The run; where trainers are lost whose work others have done, these go on by themselves."""
    try:
        with closing(build(config["storage"], plugins=config["plugins"])) as storage:
            storage.open(path)
            common = is_common(record, path, world)
            if not common and "partitions" not in config["sharding"]:
                raise _apart(path, world)
            store = _store(storage, path, config, world, common)
            Session(config, path, record, world, store, common).execute(storage, stop)
    except TrainersLost as lost:
        with world.without(lost.ranks) as left:
            if left.rank == 0:
                print(f"{lost}: the other {left.size} go on from the end of the pass", flush=True)
            _run(config | {"resume": str(path)}, path, record, left, stop)


def _store(storage: Storage, path: Path, config: dict[str, Any], world: World, common: bool) -> CheckpointStore:
    """The checkpoints of the run, beside the rows that are not in memory."""
    blobs, keep = storage.blobs(), config["checkpoint"]["keep"]
    if isinstance(blobs, LocalBlobs):
        return CheckpointStore(blobs.folder, keep, world, common)
    return RemoteCheckpointStore(blobs, keep, world)


def _apart(path: Path, world: World) -> ConfigError:
    return ConfigError(
        f"the run's folder {path} of rank 0 is not there for all ranks: ranks on several machines need a common file "
        "system; set hydra.run.dir to a folder on it, or choose sharding=partitioned, which needs none."
    )
