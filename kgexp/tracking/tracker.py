"""What a run tells the world: rows of metrics, to a file always and to Weights & Biases where it is on."""

import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from kgexp.tracking.rows import MetricsFile
from kgexp.tracking.wandb_run import WandbRun

_log = logging.getLogger("kgexp")


class Tracker:
    """Writes `<folder>/metrics.jsonl` and the W&B run: a context, which an exception marks as failed.

    One process of a distributed job tells: rank 0; the others have a `MuteTracker`.

    Args:
        config: the `tracking` group as a plain dict.
        folder: the run's folder, made if it is missing.
        run_config: the whole resolved configuration as a plain dict.
        wandb_id: the W&B id of the run that this one resumes, or None.
        job_type: `train`, `evaluate`, …: W&B filters by it.
        stream: where `say` prints; None is standard output.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        run_config: Mapping[str, Any],
        *,
        wandb_id: str | None = None,
        job_type: str = "train",
        stream: TextIO | None = None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._run_config = run_config
        self._wandb_id = wandb_id
        self._job_type = job_type
        self._stream = stream
        self._rows = MetricsFile(folder / "metrics.jsonl")
        self._wandb: WandbRun | None = None

    def __enter__(self) -> Self:
        """Raises ConfigError or KgexpError, in one sentence, where W&B is wanted and cannot start."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._config["mode"] != "disabled":
            self._wandb = WandbRun(self._config, self._folder, self._run_config, self._wandb_id, self._job_type)
            if self._wandb.url is not None:
                self.say(f"Weights & Biases: {self._wandb.url}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if kind is None else 1)

    @property
    def wandb_id(self) -> str | None:
        """The id to resume the W&B run by; what was given to the constructor where W&B is off."""
        return self._wandb_id if self._wandb is None else self._wandb.id

    @property
    def sync_command(self) -> str | None:
        """The shell command that uploads the run and those it resumed; None where nothing waits for it."""
        return None if self._wandb is None else self._wandb.sync_command

    def log(self, step: int, row: Mapping[str, float | int | str]) -> None:
        """A row of metrics at `step`, such as `{"train/loss": 0.3}`; in the file when this returns."""
        self._rows.write(step, row)
        if self._wandb is not None:
            self._wandb.log(step, row)

    def summary(self, values: Mapping[str, float | int | str]) -> None:
        """Figures of the run as a whole, such as the test MRR, which W&B lists and sorts runs by."""
        if self._wandb is not None:
            self._wandb.summary(values)

    @property
    def rows(self) -> int:
        """Rows of `metrics.jsonl` so far: what `keep` takes to come back to this moment."""
        return self._rows.count

    def keep(self, rows: int) -> None:
        """Goes back to the first `rows` rows of `metrics.jsonl`; a resumed run writes the others again.

        W&B keeps both copies, which agree.
        """
        self._rows.keep(rows)

    def say(self, text: str) -> None:
        """One line for people, and for the log of the run."""
        print(text, file=self._stream, flush=True)
        _log.info(text)


class MuteTracker(Tracker):
    """The tracker of a rank that leaves the telling to rank 0."""

    def __enter__(self) -> Self:
        return self

    def log(self, step: int, row: Mapping[str, float | int | str]) -> None:
        """Rank 0 logs it."""

    def keep(self, rows: int) -> None:
        """Rank 0 keeps them."""

    def say(self, text: str) -> None:
        """Rank 0 says it."""
