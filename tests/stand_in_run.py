"""The command in this process, with a stand-in for the training: fixtures that the conftest.py of a folder imports."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra

from kgexp.cli import main
from kgexp.sweep import processes, sweeper
from kgexp.train.record import Record


@dataclass
class Outcome:
    """What a command left behind: exit code, output, and the calls of `kgexp.run.run`."""

    code: int
    out: str
    err: str
    runs: list[tuple[dict[str, Any], Path]]


@pytest.fixture
def run_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for `kgexp.run`: trains nothing, the objective is the size of a row."""

    def run(config: dict[str, Any], folder: str) -> float:
        objective = float(config["model"]["dim"])
        Record(Path(folder)).update(status="finished", objective=objective)
        return objective

    module = ModuleType("kgexp.run")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kgexp.run", module)
    return module


@pytest.fixture
def kgexp(
    run_module: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Outcome]:
    """The command in this process, in an empty folder, with the stand-in for the training."""
    for name in ("KGEXP_TRACEBACK", "HYDRA_FULL_ERROR", "WANDB_MODE", "KGEXP_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Outcome:
        runs: list[tuple[dict[str, Any], Path]] = []
        train = run_module.run

        def run(config: dict[str, Any], folder: str) -> Any:
            runs.append((config, Path(folder)))
            return train(config, folder)

        monkeypatch.setattr(sys, "argv", ["kgexp", *arguments])
        GlobalHydra.instance().clear()
        capsys.readouterr()
        code = 0
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "run", run)
            # Other processes would not have the stand-in, and it has nothing to tell Weights & Biases.
            patch.setattr(processes, "Processes", lambda task, room: processes.InProcess(task))
            patch.setattr(sweeper, "log_summary", lambda sweep, tracking: None)
            if not any(argument.startswith("sweep=") for argument in arguments):
                # Hydra composes a first time only to see whether a file asks for a sweep: half of the time.
                patch.setattr(Hydra, "get_mode", lambda *args, **options: None)
            try:
                main()
            except SystemExit as stop:
                code = int(stop.code or 0)
        streams = capsys.readouterr()
        return Outcome(code, streams.out, streams.err, runs)

    return command
