"""Sweeps as processes, and what they have written down."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

#: Models of another package: one that dies once, one whose scores are no numbers, one that takes its time.
PLUGIN = """
import os, signal, time
from pathlib import Path
from kgexp.models.complex import ComplEx

class Killed(ComplEx):
    def tail_query(self, h, r):
        mark = Path(os.environ["HOME_OF_TEST"], "killed")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().tail_query(h, r)

class Diverging(ComplEx):
    def tail_query(self, h, r):
        return super().tail_query(h, r) * float("nan")

class Slow(ComplEx):
    def tail_query(self, h, r):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().tail_query(h, r)
"""
#: Forty small steps on a ring of 53 entities.
TINY = (
    *("dataset=files", "dataset.path=ring", "dataset.cache=cache", "model.dim=8", "train.batch_size=20"),
    *("train.steps=40", "train.threads=1", "train.device=cpu", "plugins=[strange]", "tracking.progress=none"),
    *("tracking.every_steps=1", "evaluation.every_epochs=0", "evaluation.every_steps=10"),
    *("checkpoint.every_epochs=0", "checkpoint.every_steps=5", "hydra.sweep.dir=s"),
)


class Sweeps:
    """Starts sweeps in a folder of its own, which has a graph and the plugin.

    Args:
        home: an empty folder.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "s"
        (home / "strange.py").write_text(PLUGIN)
        (home / "ring").mkdir()
        lines = [f"e{h}\tr{k}\te{(h + k + 1) % 53}\n" for k in range(3) for h in range(53)]
        for name, part in (("train", lines[:110]), ("valid", lines[110:130]), ("test", lines[130:])):
            (home / "ring" / f"{name}.txt").write_text("".join(part))
        own = {"PYTHONPATH": f"{ROOT}:{home}", "HOME_OF_TEST": str(home), "OMP_NUM_THREADS": "1"}
        own |= {f"WANDB_{kind}_DIR": str(home / "wandb") for kind in ("CACHE", "CONFIG", "DATA")}
        self._environment = os.environ | own | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "kgexp", "-m", *TINY, *arguments],
            cwd=self.home,
            env=self._environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that it can be interrupted as by a terminal
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        """To its end, after which none of its processes is left."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=150)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def result(self, number: int) -> dict[str, Any]:
        """The `result.json` of a trial."""
        found: dict[str, Any] = json.loads((self.place(number) / "result.json").read_text())
        return found

    def place(self, number: int) -> Path:
        """The folder of a trial."""
        [found] = self.folder.glob(f"{number}-*")
        return found

    def steps(self, number: int) -> list[int]:
        """Those that a trial has logged."""
        files = list(self.folder.glob(f"{number}-*/metrics.jsonl"))
        lines = files[0].read_text().splitlines(keepends=True) if files else []
        return [json.loads(line)["step"] for line in lines if line.endswith("\n")]

    def wait_for_steps(self, process: subprocess.Popen, step: int, *numbers: int) -> None:
        """Until trials have logged a step."""
        deadline = time.monotonic() + 120
        while not all(step in self.steps(number) for number in numbers):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"step {step} did not come"
            time.sleep(0.02)

    def processes(self) -> list[int]:
        """Ids of all that live."""
        mark, found = f"HOME_OF_TEST={self.home}".encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def gone(self, seconds: float) -> bool:
        """Whether all processes end in time."""
        deadline = time.monotonic() + seconds
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def trials(folder: Path) -> list[dict[str, Any]]:
    """What `sweep.json` says of each trial; their numbers have no gap."""
    found: list[dict[str, Any]] = json.loads((folder / "sweep.json").read_text())["trials"]
    assert [trial["number"] for trial in found] == list(range(len(found)))
    return found
