"""What a sweep says at its end: to people, and to Weights & Biases as a table."""

import shlex
from collections.abc import Mapping
from typing import Any

from kgexp.sweep.trials import SweepFolder

#: Failures that are listed at the end.
_SHOWN = 10


def closing_words(sweep: SweepFolder) -> str:
    """How many trials came to which end, the best of them, and what to do next."""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(sweep.counts.items()))
    lines = [f"sweep of {len(sweep.trials)} trials: {counts}"]
    key, direction = next(iter(sweep.objectives.items()))
    ranked = [(trial.values[0], trial) for trial in sweep.trials.values() if trial.values is not None]
    if ranked:
        pick = max if direction == "maximize" else min
        value, best = pick(ranked, key=lambda pair: pair[0])
        name = sweep.result(best).get("objective_name") if key == "objective" else key
        lines.append(f"best: trial {best.number} ({best.label or 'nothing changed'}), {name} {value:.4f}")
    failed = [trial for trial in sweep.trials.values() if trial.status == "failed"]
    lines += [f"failed: trial {trial.number} ({trial.label}): {trial.error}" for trial in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"failed: {len(failed) - _SHOWN} more")
    lines.append(f"report: python -m kgexp.tools.report {shlex.quote(str(sweep.path))}")
    return "\n".join(lines)


def log_summary(sweep: SweepFolder, tracking: Mapping[str, Any]) -> str | None:
    """Leaves the table of trials at Weights & Biases, as a run of its own in the sweep's group.

    Args:
        sweep: over.
        tracking: the `tracking` group, resolved.

    Returns:
        The command that uploads it with the trials' runs; None where there is nothing to upload.
    """
    if tracking["mode"] == "disabled":
        return None
    from wandb import Table

    from kgexp.tracking.wandb_run import WandbRun

    columns, rows = table(sweep)
    config = dict(tracking) | {"group": tracking["group"] or sweep.name, "name": f"sweep {sweep.name}"}
    run = WandbRun(config, sweep.path, {"objectives": sweep.objectives}, sweep.wandb_id, "sweep")
    sweep.wandb_id = run.id
    sweep.save()
    run.log(len(rows), {"sweep/trials": Table(columns=columns, data=rows)})
    run.summary({f"sweep/{status}": count for status, count in sweep.counts.items()})
    run.finish(0)
    folder = shlex.quote(str(sweep.path))
    if run.sync_command is None:
        return None
    return f"wandb sync --yes {folder}/wandb/offline-run-* {folder}/*/wandb/offline-run-*"


def table(sweep: SweepFolder) -> tuple[list[str], list[list[Any]]]:
    """A row a trial: number, status, what was swept, the objectives, cost, folder, error."""
    swept: dict[str, None] = {}
    for trial in sweep.trials.values():
        swept |= dict.fromkeys(argument.partition("=")[0] for argument in trial.swept)
    columns = ["trial", "status", *swept, *sweep.objectives, "seconds", "peak_rss", "folder", "error"]
    rows: list[list[Any]] = []
    for trial in sweep.trials.values():
        chosen = dict(argument.split("=", 1) for argument in trial.swept)
        result = sweep.result(trial)
        values: list[Any] = [*trial.values] if trial.values else [None for _ in sweep.objectives]
        rows.append(
            [
                *(trial.number, trial.status, *(chosen.get(key) for key in swept), *values),
                *((result.get("seconds") or {}).get("train"), result.get("peak_rss"), trial.folder, trial.error),
            ]
        )
    return columns, rows
