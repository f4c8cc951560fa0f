"""Reads an offline run of W&B back: the file is a LevelDB log of protobuf records."""

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

_BLOCK = 32768
_HEADER = 7  # of a chunk: checksum, length, kind; the file's own header has the same size
_FULL, _LAST = 1, 4


@dataclass
class OfflineRun:
    """What a run has stored; `exit_code` is None where it was never finished."""

    id: str = ""
    name: str = ""
    project: str = ""
    group: str = ""
    job_type: str = ""
    notes: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    step_metrics: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None


def read_offline_runs(folder: Path, patience: float = 10.0) -> list[OfflineRun]:
    """The runs below `folder/wandb`, in the order in which they were made.

    The service of W&B completes the file some milliseconds after `finish` returned: a run that is not closed
    is waited for, `patience` seconds at most.
    """
    deadline = time.monotonic() + patience
    while True:
        runs = [_read(file) for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]
        if all(run.exit_code is not None for run in runs) or time.monotonic() > deadline:
            return runs
        time.sleep(0.02)


def _read(file: Path) -> OfflineRun:
    run = OfflineRun()
    for record in _records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.id, run.name, run.project = record.run.run_id, record.run.display_name, record.run.project
            run.group, run.job_type, run.notes = record.run.run_group, record.run.job_type, record.run.notes
            run.tags = list(record.run.tags)
            run.config |= _values(record.run.config.update)
        elif kind == "history":
            run.history.append(_values(record.history.item))
        elif kind == "summary":
            run.summary |= _values(record.summary.update)
        elif kind == "metric":
            run.step_metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(file: Path) -> Iterator[Any]:
    data, at, parts = file.read_bytes(), _HEADER, b""
    assert data[:4] == b":W&B", f"{file} is no W&B run file"
    while at + _HEADER <= len(data):
        if (left := _BLOCK - at % _BLOCK) < _HEADER:  # the end of a block is padding
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (_FULL, _LAST):
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""
