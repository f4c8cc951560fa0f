"""What the benchmarks share: ranks that leave figures behind, with the machine beside them."""

import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import torch

from kgexp import environment
from kgexp.data.load import load_together
from kgexp.errors import RankError
from kgexp.ranks import start
from kgexp.train.assembly import Parts
from kgexp.world import World

T = TypeVar("T")


def apart(work: Callable[..., T], *given: Any) -> T:
    """What `work` returns in a process of its own: it starts with no memory, and leaves none.

    Raises:
        RankError: the process was killed.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(work, *given).result()
        except BrokenProcessPool as error:
            raise RankError(
                "the process that measured was killed, perhaps for want of memory: ask for less."
            ) from error


def measured(config: dict[str, Any], worker: str) -> dict[str, Any]:
    """The figures that a function leaves which each rank of a configuration calls; `worker` is its path."""
    with tempfile.TemporaryDirectory(prefix="kgexp-bench-") as folder:
        start(config, folder, None, worker=worker)
        figures: dict[str, Any] = json.loads(_file(folder).read_text())
    return figures


def device_of(config: dict[str, Any], world: World) -> torch.device:
    """The device of a rank, whose operations have the threads of a run from now on."""
    environment.set_threads(config["train"]["threads"], world, config["sharding"].get("workers", 1))
    device = environment.choose_device(config["train"]["device"], local_rank=world.local_rank)
    environment.set_matmul(config["train"]["matmul_dtype"], device)
    return device


def parts_of(config: dict[str, Any], world: World) -> Parts:
    """The objects of a run, on a rank."""
    device = device_of(config, world)
    parts = Parts.of(config, load_together(config["dataset"], world), device, world)
    environment.keep_freed_memory()
    return parts


def report(folder: str, parts: Parts, figures: dict[str, Any]) -> None:
    """Leaves the figures for `measured`, with the machine: those of rank 0."""
    leave(folder, parts.world, parts.device, figures)


def leave(folder: str, world: World, device: torch.device, figures: dict[str, Any]) -> None:
    """`report`, where there are no objects of a run."""
    if world.rank == 0:
        _file(folder).write_text(json.dumps(about(world.size, device) | figures))


def about(ranks: int, device: torch.device) -> dict[str, Any]:
    """What every benchmark says of the process that measured: memory, load, threads, versions and machine."""
    process = {"ranks": ranks, "peak_rss": environment.peak_rss(), "load_average": os.getloadavg()}
    return process | environment.describe(torch.get_num_threads(), device)


def now(device: torch.device) -> float:
    """Seconds, once all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Their median with the least and the greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _file(folder: str) -> Path:
    return Path(folder, "figures.json")
