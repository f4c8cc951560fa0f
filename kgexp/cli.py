"""The command line: Hydra composes, this checks, settles the folder, and hands a plain dictionary to the run.

Nothing here imports torch or W&B before the configuration has been found good.
"""

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from kgexp import resume
from kgexp.check import check, resolved, without_leftovers
from kgexp.config import config_dir
from kgexp.errors import KgexpError, RankError
from kgexp.explain import explain
from kgexp.ranks import follow, is_led, launched, leading, start
from kgexp.sweep import plugins
from kgexp.sweep.arguments import settled
from kgexp.sweep.slots import settle
from kgexp.threads import let_idle_threads_sleep
from kgexp.train.note import Note

log = logging.getLogger("kgexp")


def main() -> None:
    """`python -m kgexp` and the `kgexp` script.

    Exit codes: 0 done; 1 crash; 2 to 4 an error of `kgexp.errors`, or a configuration that cannot be
    composed; 130 interrupted; 128 + n stopped by signal n.
    """
    try:
        launch = launched()
        if launch is not None and launch.rank > 0:
            sys.exit(follow(launch))  # before Hydra makes a folder for it
        plugins.register()
        sys.argv[1:] = settled(sys.argv[1:])
        with leading(launch), _errors_of_hydra_raised():
            hydra.main(version_base="1.3", config_path=config_dir(), config_name="config")(task)()
    except KeyboardInterrupt:
        print("error: interrupted.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        sys.exit(_report(error))


def task(cfg: DictConfig) -> float | None:
    """One run: the function that Hydra's launchers call, here or elsewhere, once for each job of a sweep.

    Returns the objective, for sweepers. A failed run of a sweep raises, so that the launcher knows; the rest
    still run. A launcher that starts several tasks calls it in each: the first leads the others.
    """
    launch = None if is_led() else launched()
    if launch is not None and launch.rank > 0:
        code = follow(launch)
        if 0 < code < 128:
            raise RankError(f"rank 0 ended with code {code}: see its log.")
        return None
    with leading(launch):
        try:
            return _task(cfg)
        except SystemExit as stop:
            settings = HydraConfig.get()
            if settings.mode != RunMode.MULTIRUN or "joblib" not in str(settings.launcher.get("_target_")):
                raise
            # In one of joblib's processes this would end those beside it, too.
            raise KgexpError(f"the run was stopped by a signal (code {stop.code}); it has saved.") from stop


def _task(cfg: DictConfig) -> float | None:
    """One run, where this process leads it; its error in a sentence."""
    try:
        return _run(cfg)
    except Exception as error:
        sentence, code = explain(error)
        log.error(sentence, exc_info=error if code == 1 else None)
        settings = HydraConfig.get()
        if settings.mode == RunMode.MULTIRUN:
            print(f"error: run {settings.job.num}: {sentence}", file=sys.stderr)
            raise
        # Leaving through Hydra's own report would add its words to the sentence.
        sys.exit(_report(error))


def _run(cfg: DictConfig) -> float | None:
    """Checks the configuration, settles the folder, runs."""
    settings = HydraConfig.get()
    folder = str(settings.runtime.output_dir)
    overrides = list(settings.overrides.task)
    composed = without_leftovers(resolved(cfg), resume.given_keys(overrides))
    if (note := Note.read(Path(folder))) is not None:
        composed = note.applied(composed) | {"resume": composed["resume"] or "auto"}
    if settings.mode == RunMode.MULTIRUN and not is_led():
        settle(Path(settings.sweep.dir), settings.launcher.get("n_jobs") or 1)
    if resume.continues(composed["resume"], folder):
        config = check(resume.merge(resume.load(folder), composed, overrides))
    else:
        config = check(composed)
        resume.save(config, folder)
    let_idle_threads_sleep()
    job_logging = OmegaConf.to_container(settings.job_logging, resolve=True)
    return start(config, folder, job_logging if isinstance(job_logging, dict) else None)


@contextmanager
def _errors_of_hydra_raised() -> Iterator[None]:
    """Makes Hydra raise its errors instead of printing them its own way."""
    given = os.environ.get("HYDRA_FULL_ERROR")
    if given == "1":
        os.environ["KGEXP_TRACEBACK"] = "1"  # who asks Hydra for everything wants our tracebacks too
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if given is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = given


def _report(error: Exception) -> int:
    """Prints the sentence about an error, after its traceback where wanted; returns the exit code."""
    sentence, code = explain(error)
    if os.environ.get("KGEXP_TRACEBACK") == "1":
        traceback.print_exception(error)
    elif code == 1:
        sentence += " (a run's log file has the traceback; KGEXP_TRACEBACK=1 prints it)"
    print(f"error: {sentence}", file=sys.stderr)
    return code
