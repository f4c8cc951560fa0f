"""Runs experiments one after the other, unattended, and keeps a table of what they reached.

    python -m kgexp.tools.presets DATA_FOLDER [EXPERIMENT …] [KEY=VALUE …]

Without names it runs every file of `conf/experiment`; each finds its graph in `DATA_FOLDER/<dataset.name>`. A run has
a folder of its own below `outputs/presets`: what has finished is not run again, what was interrupted goes on, what
failed is tried again, and the others have their turn in any case. `outputs/presets/results.md` is the table, written
anew after every run, also of runs that earlier calls made.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgexp.config import config_dir
from kgexp.explain import explain
from kgexp.tools.composing import composed

HOME = Path("outputs/presets")
_COLUMNS = ("mrr", "hits@1", "hits@3", "hits@10")


def main(arguments: Sequence[str]) -> int:
    """The command; returns 0 when every experiment has finished."""
    overrides = [argument for argument in arguments if "=" in argument]
    names = [argument for argument in arguments if "=" not in argument]
    if not names:
        print("usage: python -m kgexp.tools.presets DATA_FOLDER [EXPERIMENT …] [KEY=VALUE …]", file=sys.stderr)
        return 2
    data, *experiments = names
    experiments = experiments or sorted(path.stem for path in Path(config_dir(), "experiment").glob("*.yaml"))
    finished = 0
    for experiment in experiments:
        finished += _run(experiment, Path(data), overrides)
        (HOME / "results.md").write_text(table(HOME), encoding="utf-8")
    print(f"{finished} of {len(experiments)} finished; the table is {HOME / 'results.md'}")
    return 0 if finished == len(experiments) else 1


def _run(experiment: str, data: Path, overrides: Sequence[str]) -> bool:
    """Runs an experiment to its end, unless it has finished before; True when it has."""
    folder = HOME / experiment
    folder.mkdir(parents=True, exist_ok=True)
    if _result(folder).get("status") == "finished":
        print(f"{experiment}: finished before", flush=True)
        return True
    given = [f"experiment={experiment}", *overrides]
    try:
        # Only to learn the graph's name; the run gets the path that belongs to it.
        dataset = composed([*given, "dataset.path=unknown"])["dataset"]
    except Exception as error:
        print(f"{experiment}: {explain(error)[0]}", file=sys.stderr)
        return False
    path = [] if dataset["name"] == "codex_s" else [f"dataset.path={data / dataset['name']}"]
    print(f"{experiment}: running in {folder}", flush=True)
    command = [sys.executable, "-m", "kgexp", *given, *path, f"hydra.run.dir={folder}", "resume=auto"]
    with open(folder / "console.txt", "a", encoding="utf-8") as console:
        code = subprocess.run(command, stdout=console, stderr=console, check=False).returncode
    result = _result(folder)
    done = code == 0 and result.get("status") == "finished"
    print(f"{experiment}: {'finished' if done else result.get('error') or f'ended with exit code {code}'}", flush=True)
    return done


def table(home: Path) -> str:
    """What the runs below `home` have reached, as a Markdown table; `home / <experiment> / result.json` is read."""
    lines = [
        "| experiment | status | epochs | " + " | ".join(f"test {name}" for name in _COLUMNS) + " | training time |",
        "| --- | --- | ---: |" + " ---: |" * (len(_COLUMNS) + 1),
    ]
    for folder in sorted(path.parent for path in home.glob("*/result.json")):
        result = _result(folder)
        metrics = result.get("metrics") or {}
        values = [metrics.get(f"test/filtered/realistic/both/{name}") for name in _COLUMNS]
        cells = ["" if value is None else f"{value:.4f}" for value in values]
        seconds = (result.get("seconds") or {}).get("train")
        time = "" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
        epochs = f"{result['epoch']:.0f}" if result.get("epoch") is not None else ""
        lines.append(f"| {folder.name} | {result.get('status')} | {epochs} | " + " | ".join(cells) + f" | {time} |")
    return "\n".join(lines) + "\n"


def _result(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
