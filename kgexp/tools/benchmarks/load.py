"""Speed of reading a graph's files into the cache: each time by a process of its own, into an empty cache.

The stages are `fingerprint`, a hash of the files; `read`, text to ids: reading, parsing, numbering and writing the ids;
`index`, the filter index and the vocabulary; and with partitions `bucket`, sorting the triples into their buckets.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from kgexp.data import files
from kgexp.data.graph import Graph
from kgexp.data.load import load as load_graph
from kgexp.errors import DataError, KgexpError

_TIMES = 3


def load(arguments: Sequence[str]) -> dict[str, Any]:
    """From the command line to the figures of the suite.

    Returns:
        `triples`, `entities`, and the `bytes` of the files; of each stage the median of its `seconds`, and
        `triples_per_second` as median, min and max, where `all` is everything but the buckets; `peak_rss`, the bytes
        that reading and indexing held in memory at most, and `index_bytes`, those of the filter index on the disk.

    Raises:
        KgexpError: the configuration or the files cannot be used.
    """
    from kgexp.tools.composing import composed
    from kgexp.tools.measuring import spread  # imports torch, which the processes that are measured do without

    config = composed(arguments)
    runs = [_run(config) for _ in range(_TIMES)]
    seconds = {stage: [run["seconds"][stage] for run in runs] for stage in runs[0]["seconds"]}
    return {
        **{name: runs[0][name] for name in ("triples", "entities")},
        "bytes": sum(path.stat().st_size for _, path in files.find(config["dataset"]["path"]).files),
        "seconds": {stage: median(times) for stage, times in seconds.items()},
        "triples_per_second": {
            stage: spread([runs[0]["triples"] / time for time in times]) for stage, times in seconds.items()
        },
        "peak_rss": max(run["peak_rss"] for run in runs),
        "index_bytes": runs[0]["index_bytes"],
    }


def _run(config: dict[str, Any]) -> dict[str, Any]:
    """What one process finds."""
    with tempfile.TemporaryDirectory(prefix="kgexp-load-") as cache:
        given = json.dumps({**config, "dataset": {**config["dataset"], "cache": cache}})
        command = [sys.executable, "-m", __name__]
        done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    if "error" in figures:
        raise DataError(figures["error"])
    return figures


def _measured(config: dict[str, Any]) -> dict[str, Any]:
    """The figures of this process."""
    begun = {"fingerprint": time.perf_counter()}

    def say(message: str) -> None:
        for stage, word in (("read", "Reading"), ("index", "Indexing")):
            if message.startswith(word):
                begun.setdefault(stage, time.perf_counter())

    graph = load_graph(config["dataset"], say)
    begun["end"] = time.perf_counter()
    seconds = {stage: end - begin for (stage, begin), end in zip(begun.items(), list(begun.values())[1:], strict=False)}
    seconds["all"] = sum(seconds.values())
    figures = {
        "triples": sum(len(graph.split(name)) for name in files.SPLITS),
        "entities": graph.num_entities,
        "seconds": seconds,
        "peak_rss": _peak_rss(),
        "index_bytes": sum(path.stat().st_size for path in Path(config["dataset"]["cache"]).rglob("known_*.npy")),
    }
    if "partitions" in config["sharding"]:
        seconds["bucket"] = _bucketing(config, graph)
    return figures


def _bucketing(config: dict[str, Any], graph: Graph) -> float:
    """Seconds of sorting the triples of train into buckets."""
    from kgexp.build import build
    from kgexp.data.buckets import obtain_buckets
    from kgexp.sharding.partitioned import PartitionedSharding

    sharding: PartitionedSharding = build(config["sharding"], plugins=config["plugins"])
    sharding.suppose(1)
    sharding.divide(graph.entities.types, graph.kinds.joined)
    bounds = sharding.slices(graph.num_entities).bounds
    begin = time.perf_counter()
    obtain_buckets(graph, bounds, Path(config["dataset"]["cache"]), lambda message: None)
    return time.perf_counter() - begin


def _peak_rss() -> int:
    """The most memory that this process has held; what Linux counts for its parent's sake is left out."""
    status = Path("/proc/self/status")
    if not status.is_file():
        from kgexp.environment import peak_rss

        return peak_rss()
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    try:
        print(json.dumps(_measured(json.load(sys.stdin))))
    except KgexpError as error:
        print(json.dumps({"error": str(error)}))
