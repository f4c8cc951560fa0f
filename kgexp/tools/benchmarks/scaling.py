"""The suite `scaling`: training of all ranks and of one alone, in turns.

`speedup` is the ratio of their triples a second. `cpu_speedup` is that of the computing of one rank to that of the
busiest, the exchange's included: what several ranks with cores of their own can reach, and nearly the same on a busy
machine; `speedup` wants a quiet one, for ranks wait for each other.
"""

from typing import Any

from kgexp.errors import ConfigError
from kgexp.tools.benchmarks import steps
from kgexp.tools.benchmarks.steps import Steps, summary, window_size
from kgexp.tools.measuring import parts_of, report
from kgexp.train.assembly import Parts
from kgexp.world import ALONE, World


def scaling(config: dict[str, Any], folder: str, world: World = ALONE) -> None:
    """The suite, on each rank: the figures `alone` of rank 0, those of all ranks `together`, and their ratios."""
    if world.size == 1:
        raise ConfigError("scaling compares one rank with several: set sharding.ranks to 2 or more.")
    parts = parts_of(config, world)
    together, alone = Steps(parts), None
    if world.rank == 0:
        alone = Steps(Parts.of(config, parts.graph, parts.device))
    size, size_alone = window_size(together, world), window_size(alone, ALONE) if alone else 0
    windows, windows_alone = [], []
    for _ in range(steps.WINDOWS):
        if alone:
            windows_alone.append(alone.window(size_alone))
        world.barrier("the window of one rank")
        windows.append(together.window(size))
    of_all = summary(windows, world)
    if alone:
        figures = {"alone": summary(windows_alone, ALONE), "together": of_all}
        one, all_ranks = (figure["triples_per_second"]["median"] for figure in figures.values())
        cpu_one, cpu_all = (max(figure["ms_a_step_by_rank"]["cpu"]) for figure in figures.values())
        ratios = {"speedup": all_ranks / one, "cpu_speedup": cpu_one / max(cpu_all, 1e-3)}
        report(folder, parts, ratios | figures)
