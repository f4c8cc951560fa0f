"""What ranks do in the tests: `worker(config, folder, world)`, as `kgexp.run.run`."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kgexp.errors import DataError
from kgexp.train.record import Record
from kgexp.train.signals import StopSignal, strongest
from kgexp.world import World


def come(folder: str, world: World) -> None:
    """Leaves word that this rank is there."""
    Path(folder, f"rank{world.rank}").write_text(str(os.getpid()))
    world.barrier("come")


def success(config: dict[str, Any], folder: str, world: World) -> float:
    import logging

    come(folder, world)
    logging.getLogger("kgexp").info("rank %s works", world.rank)
    everyone = world.gather("ranks", [world.rank, world.size, world.local_rank, world.local_size])
    assert everyone == [[rank, world.size, rank, world.size] for rank in range(world.size)]
    Path(folder, f"env{world.rank}").write_text(os.environ["OMP_NUM_THREADS"])
    return 0.5 + world.rank


def alone(config: dict[str, Any], folder: str) -> float:
    """Leaves its process in place of a result."""
    return float(os.getpid())


def refuses(config: dict[str, Any], folder: str, world: World) -> None:
    come(folder, world)
    if world.rank == 1:
        raise DataError("train.txt, line 3: no tail.")
    world.barrier("trained")


def crashes(config: dict[str, Any], folder: str, world: World) -> None:
    come(folder, world)
    if world.rank == 1:
        raise KeyError("the row")
    Record(Path(folder), written=world.rank == 0).update(status="running")
    world.barrier("trained")


def unpicklable(config: dict[str, Any], folder: str, world: World) -> None:
    class Local(Exception):
        pass

    raise Local("nobody knows my class")


def killed(config: dict[str, Any], folder: str, world: World) -> None:
    come(folder, world)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier("trained")


def silent(config: dict[str, Any], folder: str, world: World) -> None:
    """Rank 1 neither works nor ends."""
    come(folder, world)
    world.beat("train", 57)
    if world.rank == 1:
        time.sleep(0.6)  # a heartbeat
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier("trained")


def deaf(config: dict[str, Any], folder: str, world: World) -> None:
    """Rank 0 waits in C code for ever, where nothing reaches it."""
    come(folder, world)
    if world.rank == 0:
        ctypes.CDLL(None).pause()
    raise DataError("rank 1 has enough.")


def trains(config: dict[str, Any], folder: str, world: World) -> None:
    """Steps until the ranks agree to stop, at one step."""
    with StopSignal(shared=True) as stop:
        come(folder, world)
        step = 0
        while stop.requested is None:
            stop.adopt(strongest(world.gather("stop", int(stop.noted or 0))))
            step += 1
            time.sleep(0.01)
        Path(folder, f"stopped{world.rank}").write_text(f"{step} {stop.requested.name}")
        stop.finish()


def sometimes(config: dict[str, Any], folder: str, world: World) -> float:
    """Rank 1 refuses the first of two runs."""
    world.barrier("come")
    if world.rank == 1 and config["run"] == 0:
        raise DataError("the first run is refused.")
    world.barrier("trained")
    Path(folder, f"done{config['run']}-{world.rank}").touch()
    return float(config["run"])


if __name__ == "__main__":
    # A parent that the tests can kill: workers.py WORKER FOLDER
    from kgexp.ranks.spawned import spawn

    with StopSignal() as stop_signal:
        spawn({"sharding": {}}, sys.argv[2], None, 2, stop_signal, f"workers.{sys.argv[1]}", "plain_world.PlainWorld")
