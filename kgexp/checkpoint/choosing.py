"""Which checkpoint is meant by the folder of a run."""

from collections.abc import Callable
from pathlib import Path

from kgexp.checkpoint.checkpoint import Checkpoint
from kgexp.checkpoint.store import CheckpointStore
from kgexp.errors import CheckpointError, ConfigError


def choose(
    source: Path, step: int | None = None, newest: bool = False, say: Callable[[str], None] = lambda line: None
) -> Checkpoint:
    """The checkpoint `source`, or one of the run `source`: the best, the newest where none is, or that of a step.

    Args:
        source: a folder.
        step: the steps trained before the one that is wanted.
        newest: whether the newest is wanted though there is a best one.
        say: is told of damaged ones that were passed over.

    Raises:
        CheckpointError: there is none, or it is damaged.
        ConfigError: a checkpoint of one step was given together with a choice.
    """
    if (source / "index.json").is_file():
        if step is not None or newest:
            raise ConfigError(f"{source} is one checkpoint already: leave out --step and --newest, or give the run.")
        return Checkpoint(source)
    store = CheckpointStore(source / "checkpoints", keep=1)  # to read from
    last = store.newest(say) if step is None else None
    if step is not None and step in store.steps():
        return store.open(step)
    if last is None:
        steps = ", ".join(map(str, store.steps()))
        raise CheckpointError(
            f"{source} has no checkpoint of step {step}: there are {steps}."
            if steps
            else f"{source} is no checkpoint and no run that has one: give a run's folder, which holds checkpoints/."
        )
    best = (last.state.get("best") or {}).get("step")
    return last if newest or best is None else store.open(best)
