"""Weights & Biases: one run of its own for every job, and no trouble of the service ends the job.

Nothing is imported from wandb until a run starts, so that it may be missing where tracking is off.
"""

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgexp.errors import ConfigError, KgexpError

_log = logging.getLogger("kgexp")

#: Seconds that the end of a job waits for its rows to be uploaded; they are on the disk in any case.
_FINISH_TIMEOUT = 120.0


class WandbRun:
    """A run at Weights & Biases, online or in a folder for a later upload.

    Args:
        config: the `tracking` group; its `mode` is offline or online.
        folder: the run's folder; wandb writes into its `wandb/`.
        run_config: the whole resolved configuration, shown with the run.
        wandb_id: the id of the run that this one continues, or None for a new one.
        job_type: `train`, `evaluate`, …

    Raises:
        ConfigError: wandb is not installed.
        KgexpError: the run cannot start: no key, no network, a refused name.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        run_config: Mapping[str, Any],
        wandb_id: str | None,
        job_type: str,
    ) -> None:
        online = config["mode"] == "online"
        try:
            self._run = _start(config, folder, run_config, wandb_id, job_type)
        except ImportError as error:
            raise ConfigError(
                f"tracking.mode={config['mode']} needs Weights & Biases, which is not installed: "
                "pip install wandb, or set tracking=none."
            ) from error
        except Exception as error:
            raise KgexpError(
                f"Weights & Biases did not start in mode {config['mode']} ({_first_line(error)}): "
                "run `wandb login` and check the network, or set tracking.mode=offline."
            ) from error
        self._warned = False
        self.id: str = self._run.id
        self.url: str | None = self._run.url if online else None
        self.sync_command = (
            None if online else f"wandb sync --yes {shlex.quote(str(folder.absolute() / 'wandb'))}/offline-run-*"
        )

    def log(self, step: int, row: Mapping[str, float | int | str]) -> None:
        """Adds a row, with `step` as a column."""
        try:
            self._run.log({"step": step, **row})
        except Exception as error:
            self._warn(error)

    def summary(self, values: Mapping[str, float | int | str]) -> None:
        """Sets figures of the run as a whole."""
        try:
            self._run.summary.update(dict(values))
        except Exception as error:
            self._warn(error)

    def finish(self, exit_code: int) -> None:
        """Closes the run, as finished (0) or failed."""
        try:
            self._run.finish(exit_code=exit_code)
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "Weights & Biases failed (%s): the run goes on, metrics.jsonl has every row.",
                _first_line(error),
            )


def _start(
    config: Mapping[str, Any],
    folder: Path,
    run_config: Mapping[str, Any],
    wandb_id: str | None,
    job_type: str,
) -> Any:
    from wandb import init  # the name, not the module: a folder `wandb/` imports as an empty module

    timeout = {"finish_timeout": _FINISH_TIMEOUT} if config["mode"] == "online" else {}
    run = init(
        **{key: config[key] for key in ("project", "entity", "group", "name", "tags", "notes", "mode")},
        dir=folder,
        config=dict(run_config),
        id=wandb_id,
        resume="allow",
        job_type=job_type,
        # Jobs of a sweep share a process: the second would else write into the first one's run.
        reinit="finish_previous",
        settings={"console": "off", "silent": True} | timeout,
    )
    # W&B drops rows whose own counter goes back, as it does where a run resumes from an older step.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    # Trials of a sweep have batches of other sizes: their validations are compared by epoch.
    run.define_metric("train/epoch")
    run.define_metric("valid/*", step_metric="train/epoch")
    return run


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
