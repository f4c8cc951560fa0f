"""The figures of `kgexp.tools.plan` for people."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from kgexp.tools.columns import aligned
from kgexp.tools.traffic import table
from kgexp.train.memory import size


def needs(figures: Mapping[str, Any]) -> str:
    """What a run needs, and which sharding fits."""
    graph, room = figures["graph"], figures["room"]
    parts = [
        _graph(graph),
        "\n".join(_memory(figures["needs"])),
        "\n".join(_disk(figures["needs"]["disk"])),
        "\n".join(_time(figures["time"])),
        "\n".join(_choices(figures["choices"], room)),
        "\n".join(_advice(figures, room)),
    ]
    return "\n\n".join(parts)


def traffic(figures: Mapping[str, Any]) -> str:
    """What ranks send."""
    graph = figures["graph"]
    step = f"a step is {figures['batch_size']:,} of {graph['train']:,} triples"
    return f"{graph['name']}: {graph['entities']:,} entities; {step}\n{table(figures['plans'])}"


def _graph(graph: Mapping[str, Any]) -> str:
    splits = ", ".join(f"{graph[split]:,} {split}" for split in ("train", "valid", "test"))
    return f"{graph['name']}: {graph['entities']:,} entities, {graph['relations']:,} relations; triples: {splits}"


def _memory(needs: Mapping[str, Any]) -> Iterator[str]:
    memory, ranks, rows = needs["memory"], needs["ranks"], max(needs["rows"])
    yield f"memory{f' of each of {ranks} ranks' if ranks > 1 else ''}, libraries and mapped data aside"
    yield _line("entity rows", f"{rows:,}")
    for name, n in memory["parts"].items():
        yield _line(name, size(n))
    yield _line("in all", size(memory["total"]))
    if memory["state_elsewhere"]:
        yield _line("optimizer state", f"{size(memory['state_elsewhere'])} on another device")
    if needs["refused"] is not None:
        yield f"  {needs['refused']}"


def _disk(disk: Mapping[str, Any]) -> Iterator[str]:
    yield "disk, at most"
    for name, n in disk["parts"].items():
        yield _line(name, size(n) + (f", each {size(disk['checkpoint'])}" if name == "checkpoints" else ""))
    yield _line("in all", size(disk["total"]))


def _time(time: Mapping[str, Any]) -> Iterator[str]:
    if "skipped" in time:
        yield f"time: not measured: {time['skipped']}"
        return
    seconds, measured = time["seconds"], time["measured"]
    yield (
        f"time, estimated for this machine from {measured['steps']:,} steps and {measured['queries']:,} queries, "
        f"threads: {measured['threads']}"
    )
    yield _line("an epoch", f"{_duration(seconds['epoch'])} at {time['triples_per_second']:,.0f} {time['examples']}/s")
    yield _line("drawing the rows", _duration(seconds["initialise"]))
    yield _line("training", _duration(seconds["training"]))
    if time["queries_per_second"]:
        number, rate = time["validations"], f"{time['queries_per_second']:,.0f} queries/s"
        yield _line("validations", f"{_duration(seconds['validations'])}, {number} at {rate}")
        yield _line("test", _duration(seconds["test"]))
    yield _line("in all", _duration(seconds["total"]))
    for line in time["assumptions"]:
        yield f"  {line}"


def _choices(choices: Sequence[Mapping[str, Any]], room: Mapping[str, Any]) -> Iterator[str]:
    several = f" on each of {room['devices']} devices" if room["devices"] > 1 else ""
    yield f"which sharding fits {size(room['memory'])}{several}"
    known = [choice for choice in choices if choice["refused"] is None]
    columns = {
        "": [" ".join(choice["arguments"]) for choice in known],
        "rows a rank": [f"{max(choice['rows']):,}" for choice in known],
        "memory a rank": [size(choice["memory"]["total"]) for choice in known],
        "disk": [size(choice["disk"]["total"]) for choice in known],
        "fits": ["yes" if choice["fits"] else "no" for choice in known],
    }
    if known:
        yield from (f"  {line}" for line in aligned(columns, left=1).splitlines())
    # The choices of a kind are refused for the same reason.
    refused = {choice["refused"]: choice for choice in reversed(choices) if choice["refused"] is not None}
    for sentence, choice in refused.items():
        yield f"  refused, {choice['arguments'][0]}: {sentence.partition(': ')[0]}"


def _advice(figures: Mapping[str, Any], room: Mapping[str, Any]) -> Iterator[str]:
    if figures["recommended"] is not None:
        yield f"the simplest that fits: {' '.join(figures['recommended'])}"
        return
    yield f"nothing fits {size(room['memory'])}: {', or '.join(figures['remedies'])}"


def _line(name: str, value: str) -> str:
    return f"  {name:<18}{value}"


def _duration(seconds: float) -> str:
    """Such as 0:03:20; of short ones also the tenths."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
