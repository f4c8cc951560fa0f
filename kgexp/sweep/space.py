"""The space of a search: Hydra's sweep syntax as Optuna's distributions.

`optimizer.lr=tag(log, interval(0.01, 1))`, `model.dim=range(50, 401, 50)`, `model=complex,distmult`.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from kgexp.errors import ConfigError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution


def distributions(overrides: Sequence[Override]) -> "dict[str, BaseDistribution]":
    """The swept arguments by key.

    Raises:
        ConfigError: nothing is swept, or an interval cannot be.
    """
    space = {o.get_key_element(): _distribution(o) for o in overrides if o.is_sweep_override()}
    if not space:
        raise ConfigError(
            "the search has nothing to choose: sweep a key, as in 'optimizer.lr=tag(log, interval(0.01, 1))' or "
            "model.dim=100,200, or choose a sweep such as sweep=search_complex."
        )
    return space


def check_same(space: "Mapping[str, BaseDistribution]", study: "Study") -> None:
    """Raises ConfigError where the space differs from the study's so that the study cannot go on."""
    from optuna.distributions import check_distribution_compatibility

    for trial in study.get_trials(deepcopy=False):
        for key in space.keys() & trial.distributions.keys():
            try:
                check_distribution_compatibility(trial.distributions[key], space[key])
            except ValueError as error:
                raise ConfigError(
                    f"the search has chosen {key} from other values so far: give those again (intervals may change), "
                    "or choose another hydra.sweep.dir."
                ) from error


def arguments(params: Mapping[str, Any]) -> list[str]:
    """Chosen values as command-line arguments; numbers are written in full."""
    return [f"{key}={value}" for key, value in params.items()]


def within(space: "Mapping[str, BaseDistribution]", values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that the space could choose, as it would write them."""
    from optuna.distributions import CategoricalDistribution

    found: dict[str, Any] = {}
    for key, distribution in space.items():
        value = values.get(key)
        if isinstance(distribution, CategoricalDistribution):
            for choice in distribution.choices:
                meant = OverridesParser.create().parse_override(f"{key}={choice}").value()
                if meant == value and isinstance(meant, bool) == isinstance(value, bool):
                    found[key] = choice
        elif isinstance(value, (int, float)) and distribution._contains(distribution.to_internal_repr(value)):
            found[key] = value
    return found


def _distribution(override: Override) -> "BaseDistribution":
    """What one argument may become."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    sweep: Any = override.value()
    try:
        if isinstance(sweep, IntervalSweep):
            log = "log" in sweep.tags
            low, high = sweep.start, sweep.end
            assert low is not None and high is not None
            if not (math.isfinite(low) and math.isfinite(high)):
                raise ValueError("it has no end")
            if isinstance(low, int) and isinstance(high, int):
                return IntDistribution(low, high, log=log)
            return FloatDistribution(float(low), float(high), log=log)
        if isinstance(sweep, RangeSweep):
            start, stop, step = sweep.start, sweep.stop, sweep.step
            assert start is not None and stop is not None
            # In decimals, as they were written: 3 * 0.3 is 0.9. `stop` itself is left out.
            first, end, by = (Decimal(str(value)) for value in (start, stop, step))
            last = first + (math.ceil((end - first) / by) - 1) * by
            if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
                return IntDistribution(int(start), int(last), step=int(step))
            return FloatDistribution(float(start), float(last), step=float(step))
    except ValueError as error:
        raise ConfigError(f"{override.input_line} cannot be searched ({error}): correct its bounds.") from error
    return CategoricalDistribution(list(override.sweep_string_iterator()))
