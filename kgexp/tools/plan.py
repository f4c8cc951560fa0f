"""What a run will need, before anybody starts it: memory, disk and time, and which sharding fits.

    python -m kgexp.tools.plan dataset=files dataset.path=PATH/HumanGenes scoring=negatives model.dim=200
    python -m kgexp.tools.plan … sharding=rowwise sharding.ranks=4 --memory 8GB --devices 4
    python -m kgexp.tools.plan … --ranks 2,4,8

The arguments are those of a run. Nothing is started and no folder is made; of the tables a few rows are drawn, to time
some steps. Memory is the bound that the run prints, of each rank; disk is what it has in files at once. Times are an
estimate for this machine and what else it does. Then come choices of sharding, with what each needs of `--memory` (of a
rank's device; by default what is free here) on `--devices`, and the simplest one that fits, to be pasted. `--ranks`
tells what row-wise sharding would send instead: see `kgexp.tools.traffic`. `--json` prints everything for programs,
sizes in bytes and times in seconds.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch

from kgexp import environment
from kgexp.errors import ConfigError
from kgexp.ranks import number_of_ranks
from kgexp.tools import duration, plan_text, traffic
from kgexp.tools.arguments import memory, number, numbers
from kgexp.tools.calibration import calibrate
from kgexp.tools.choices import Choice, Chooser, Room, recommended
from kgexp.tools.composing import composed, composed_rowwise
from kgexp.tools.duration import Course
from kgexp.tools.failing import failed
from kgexp.tools.needs import Needs, needs_of, parts_of
from kgexp.train.assembly import Parts


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    options = _parser().parse_intermixed_args(arguments)
    try:
        figures = _traffic(options) if options.ranks else _needs(options)
    except Exception as error:
        return failed(error)
    told = plan_text.traffic if options.ranks else plan_text.needs
    print(json.dumps(figures) if options.json else told(figures))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m kgexp.tools.plan", description="What a run will need.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as of a run")
    parser.add_argument("--memory", type=memory, help="of a rank's device, such as 8GB: what is free here")
    parser.add_argument("--devices", type=number, help="that ranks can have: the GPUs here, else 1")
    parser.add_argument("--calibration", type=_seconds, default=10.0, metavar="SECONDS", help="of timing; 0: none: 10")
    parser.add_argument("--ranks", type=numbers, metavar="W,W,…", help="what so many ranks would send, such as 2,4,8")
    parser.add_argument("--steps", type=number, default=32, help="steps that --ranks looks at: 32")
    parser.add_argument("--json", action="store_true", help="all figures, for programs")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return value


def _traffic(options: argparse.Namespace) -> dict[str, Any]:
    """What row-wise sharding would send, as JSON values."""
    config = composed_rowwise(options.overrides)
    if "RowwiseSharding" not in config["sharding"]["_target_"]:
        raise ConfigError("rows are exchanged with sharding=rowwise only: leave the other choice out.")
    parts = parts_of(config)
    plans = [traffic.figures(parts.supposing(config, ranks), options.steps) for ranks in options.ranks]
    about = {"graph": _graph(parts), "batch_size": config["train"]["batch_size"], "steps": options.steps}
    return about | {"plans": plans}


def _needs(options: argparse.Namespace) -> dict[str, Any]:
    """Everything else, as JSON values."""
    config = composed(options.overrides)
    ranks, alone = number_of_ranks(config), parts_of(config)
    parts, room = alone.supposing(config, ranks), _room(options, alone)
    course = Course.of(parts)
    needs = needs_of(parts, course.snapshots)
    chooser = Chooser(config, alone, course.snapshots)
    choices = list(chooser.choices(room.devices))
    best = recommended(choices, room)
    return {
        "graph": _graph(parts),
        "needs": needs.as_dict() | {"refused": _refusal(needs, room, parts)},
        "time": _time(parts, course, options.calibration),
        "room": {"memory": room.memory, "devices": room.devices},
        "choices": [choice.as_dict(room) for choice in choices],
        "recommended": None if best is None else list(best.arguments),
        "remedies": [] if best is not None else _remedies(chooser, choices, room),
    }


def _graph(parts: Parts) -> dict[str, Any]:
    """The graph in numbers."""
    graph = parts.graph
    splits = {split.name: len(split) for split in (graph.train, graph.valid, graph.test)}
    return {"name": graph.name, "entities": graph.num_entities, "relations": graph.num_relations, **splits}


def _room(options: argparse.Namespace, parts: Parts) -> Room:
    """The memory that ranks can have: as the arguments say, else what there is here."""
    gpu = parts.device.type == "cuda"
    devices = options.devices or (torch.cuda.device_count() if gpu else 1) or 1
    if options.memory is not None:
        return Room(options.memory, devices)
    if not gpu or torch.cuda.is_available():
        free = min(environment.available_memory(parts.device).values(), default=None)
        if free is not None:
            return Room(free, devices)
    raise ConfigError("how much memory there is cannot be told here: give the device's, as in --memory 80GB.")


def _refusal(needs: Needs, room: Room, parts: Parts) -> str | None:
    """Why the run would not start; None where it would."""
    try:
        needs.memory.check(room.of_rank(needs.memory.ranks), parts.objective.model.dim)
    except ConfigError as error:
        return str(error)
    return None


def _time(parts: Parts, course: Course, seconds: float) -> dict[str, Any]:
    """How long the run takes, or why that is not known."""
    if not seconds:
        return {"skipped": "--calibration 0"}
    try:
        return duration.as_dict(parts, course, calibrate(parts, seconds))
    except ConfigError as error:
        return {"skipped": str(error)}


def _remedies(chooser: Chooser, choices: Sequence[Choice], room: Room) -> list[str]:
    """What would fit where none of the choices does."""
    one, dim = choices[0], chooser.parts.objective.model.dim
    remedies = [] if one.needs is None else one.needs.memory.remedies(room.memory, dim)
    if (devices := chooser.enough_devices(room)) is not None:
        remedies.append(f"sharding=rowwise sharding.ranks={devices} over {devices} such devices")
    return remedies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
