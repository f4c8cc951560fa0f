"""The choices of `dataset`, `sharding`, `storage`, `evaluation` and `tracking`, and the sections that are no group."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from kgexp.schemas.bounds import number, one_of


@dataclass
class Files:
    """A graph in files."""

    name: str = MISSING
    path: str = MISSING
    columns: list[str] = one_of("head", "relation", "tail", "weight", "ignore")
    header: bool = MISSING
    valid: float = number(at_least=0, below=1)
    test: float = number(at_least=0, below=1)
    split_seed: int = number(at_least=0)
    relation_types: str | None = MISSING
    relation_weights: str | None = MISSING
    cache: str | None = MISSING


@dataclass
class NoSharding:
    """`kgexp.sharding.local.LocalSharding`."""

    _target_: str = "kgexp.sharding.local.LocalSharding"
    state_device: str | None = one_of("cpu", "cuda")


@dataclass
class DistributedSharding:
    """What `kgexp.sharding.distributed` has in common."""

    _target_: str = MISSING
    ranks: int | str = field(default=MISSING, metadata={"at_least": 1, "choices": ("auto",)})
    timeout: float = number(above=0)
    state_device: str | None = one_of("cpu", "cuda")


@dataclass
class ReplicatedSharding(DistributedSharding):
    """`kgexp.sharding.distributed.ReplicatedSharding`."""

    _target_: str = "kgexp.sharding.distributed.ReplicatedSharding"


@dataclass
class RowwiseSharding(DistributedSharding):
    """`kgexp.sharding.distributed.RowwiseSharding`."""

    _target_: str = "kgexp.sharding.distributed.RowwiseSharding"
    wire_dtype: str | None = one_of("bfloat16")


@dataclass
class PartitionedSharding:
    """`kgexp.sharding.partitioned.PartitionedSharding`."""

    _target_: str = "kgexp.sharding.partitioned.PartitionedSharding"
    partitions: int = number(at_least=1)
    buffer: int = number(at_least=1)
    slices: int = number(at_least=1)
    order: str = one_of("covering", "chained", "inside_out", "outside_in", "affinity", "random")
    mix: bool = MISSING
    spread: bool = MISSING
    chunks: int = number(at_least=1)
    holdout: float = number(at_least=0, below=1)
    prefetch: bool = MISSING
    workers: int = number(at_least=1)
    ranks: int | str = field(default=MISSING, metadata={"at_least": 1, "choices": ("auto",)})
    timeout: float = number(above=0)
    scheduler: str = one_of("tournament", "locks")
    lease: float = number(above=0)
    sync_steps: int = number(at_least=1)
    wire_dtype: str | None = one_of("bfloat16")
    type_partitions: dict[str, int] = number(at_least=1)


@dataclass
class MemoryStorage:
    """`kgexp.storage.memory.MemoryStorage`."""

    _target_: str = "kgexp.storage.memory.MemoryStorage"


@dataclass
class LocalStorage:
    """`kgexp.storage.local.LocalStorage`."""

    _target_: str = "kgexp.storage.local.LocalStorage"
    path: str | None = MISSING


@dataclass
class RemoteStorage:
    """`kgexp.storage.remote.RemoteStorage`."""

    _target_: str = "kgexp.storage.remote.RemoteStorage"
    url: str = MISSING
    options: dict[str, Any] = MISSING
    retries: int = number(at_least=0)


@dataclass
class Evaluation:
    """When and how the model is ranked."""

    protocol: str = one_of("full", "sampled")
    candidates: int = number(at_least=1)
    splits: list[str] = one_of("valid", "test")
    every_epochs: int = number(at_least=0)
    every_steps: int = number(at_least=0)
    queries: int = number(at_least=1)
    block: int = number(at_least=1)
    max_valid_triples: int | None = number(at_least=1)
    objective: str = MISSING


@dataclass
class Tracking:
    """Where the numbers go."""

    mode: str = one_of("online", "offline", "disabled")
    project: str = MISSING
    entity: str | None = MISSING
    group: str | None = MISSING
    name: str = MISSING
    tags: list[str] = MISSING
    notes: str | None = MISSING
    every_steps: int = number(at_least=1)
    progress: str = one_of("auto", "bar", "lines", "none")


@dataclass
class Train:
    """Length, batches and devices of the training."""

    epochs: int = number(at_least=0)
    steps: int | None = number(at_least=0)
    batch_size: int = number(at_least=1)
    threads: int | str = field(default=MISSING, metadata={"at_least": 1, "choices": ("auto",)})
    device: str = one_of("auto", "cpu", "cuda")
    dtype: str = one_of("float32", "float64")
    matmul_dtype: str = one_of("float32", "tf32", "bfloat16")
    table_dtype: str | None = one_of("bfloat16")
    state_dtype: str | None = one_of("bfloat16")
    init_from: str | None = MISSING


@dataclass
class Checkpoint:
    """When a checkpoint is written, and how many stay."""

    every_epochs: int = number(at_least=0)
    every_steps: int = number(at_least=0)
    keep: int = number(at_least=1)
    snapshot_epochs: int = number(at_least=0)


@dataclass
class Averaging:
    """Which weights are averaged."""

    start: float | None = number(at_least=0, below=1)
    every_epochs: int = number(at_least=0)
    every_steps: int = number(at_least=0)


@dataclass
class EarlyStopping:
    """When training ends before its time."""

    patience: int | None = number(at_least=1)
    min_delta: float = number(at_least=0)
