"""What the benchmarks share: ranks that leave figures behind, with the machine beside them."""

import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgexp import environment
from kgexp.data.load import load_together
from kgexp.ranks import start
from kgexp.train.assembly import Parts
from kgexp.world import World


def measured(config: dict[str, Any], worker: str) -> dict[str, Any]:
    """The figures that a function leaves which each rank of a configuration calls; `worker` is its path."""
    with tempfile.TemporaryDirectory(prefix="kgexp-bench-") as folder:
        start(config, folder, None, worker=worker)
        figures: dict[str, Any] = json.loads(_file(folder).read_text())
    return figures


def parts_of(config: dict[str, Any], world: World) -> Parts:
    """The objects of a run, on a rank."""
    environment.set_threads(config["train"]["threads"], world, config["sharding"].get("workers", 1))
    device = environment.choose_device(config["train"]["device"], local_rank=world.local_rank)
    return Parts.of(config, load_together(config["dataset"], world), device, world)


def report(folder: str, parts: Parts, figures: dict[str, Any]) -> None:
    """Leaves the figures for `measured`, with the machine: those of rank 0."""
    if parts.world.rank == 0:
        import torch

        machine = environment.describe(torch.get_num_threads(), parts.device)
        about = {"ranks": parts.world.size, "peak_rss": environment.peak_rss(), "load_average": os.getloadavg()}
        _file(folder).write_text(json.dumps({**figures, **about, **machine}))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Their median with the least and the greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _file(folder: str) -> Path:
    return Path(folder, "figures.json")
