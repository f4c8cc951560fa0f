"""What the configuration of a run would take: memory of a rank, and disk; nothing is started or allocated for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kgexp import environment
from kgexp.build import build
from kgexp.data.load import load
from kgexp.train.assembly import Parts
from kgexp.train.estimator import kept_checkpoints
from kgexp.train.memory import Estimate

#: `sharding=none`, under which the objects of a run are made that know of no other rank.
_ONE_PROCESS = {"_target_": "kgexp.sharding.local.LocalSharding", "state_device": None}


@dataclass(frozen=True)
class Needs:
    """What a run takes.

    Attributes:
        rows: entity rows that each rank has in memory, or in mapped files.
        memory: the bound of a rank, as the run prints it before it starts.
        disk: bytes at once by what they are for, at most; of all ranks.
        kept: checkpoints at once, snapshots aside.
    """

    rows: list[int]
    memory: Estimate
    disk: Mapping[str, int]
    kept: int

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        memory = {"parts": dict(self.memory.parts), "total": self.memory.total, "state_elsewhere": self.memory.state}
        disk = {"parts": dict(self.disk), "total": sum(self.disk.values()), "checkpoint": self.memory.checkpoint}
        return {"ranks": self.memory.ranks, "rows": self.rows, "memory": memory, "disk": disk}


def device_of(config: Mapping[str, Any]) -> torch.device:
    """That of the run, on the machine where it will be: it may have a GPU that this one lacks."""
    name = config["train"]["device"]
    return torch.device("cuda") if name == "cuda" else environment.choose_device(name)


def parts_of(config: dict[str, Any]) -> Parts:
    """The objects of a run in one process, from which `Parts.supposing` makes those of others."""
    return Parts.of(config | {"sharding": _ONE_PROCESS}, load(config["dataset"]), device_of(config))


def in_one_process(parts: Parts) -> Parts:
    """The same without partitions and other ranks."""
    state_device = parts.config["sharding"].get("state_device")
    return parts.supposing(parts.config | {"sharding": _ONE_PROCESS | {"state_device": state_device}}, 1)


def needs_of(parts: Parts, snapshots: int) -> Needs:
    """What the run takes whose objects these are, and that leaves so many snapshots."""
    config, graph, sharding = parts.config, parts.graph, parts.sharding
    memory = parts.estimate(build(config["storage"], plugins=config["plugins"]))
    names = sum(Path(path).stat().st_size for path in graph.vocabulary_files.values())
    partitioned, kept = "partitions" in config["sharding"], kept_checkpoints(config)
    if not (partitioned and memory.files):
        kept += 1  # the one that is being written; files of partitions become it
    disk = {"checkpoints": kept * (memory.checkpoint + names)}
    if snapshots:
        disk["snapshots"] = snapshots * (memory.checkpoint + names)
    if memory.files:
        disk["partitions" if partitioned else "tables"] = memory.files
    if parts.buckets is not None:
        disk["triples by bucket"] = len(parts.buckets) * parts.buckets.row_bytes
    owners = sharding.owners(graph.num_entities)
    rows = owners.sizes() if owners.ranks > 1 else [sharding.rows_in_memory(graph.num_entities)] * memory.ranks
    return Needs(rows, memory, disk, kept)
