"""The suite `train`: triples a second, where the time of a step goes, and how far it is from what the machine can do.

All but the rates is looked at after the timed windows, in steps of their own: the timed ones are those of a run.
"""

from typing import Any

import torch

from kgexp import environment
from kgexp.tools.benchmarks import products, stages, steps
from kgexp.tools.benchmarks.steps import Steps, summary, window_size
from kgexp.tools.measuring import parts_of, report
from kgexp.train.assembly import Parts
from kgexp.world import ALONE, World

#: Steps of the window in which stages are timed, at most.
_STAGED = 50


def train(config: dict[str, Any], folder: str, world: World = ALONE) -> None:
    """The suite, on each rank."""
    parts = parts_of(config, world)
    running = Steps(parts)
    size = window_size(running, world)
    windows = [running.window(size) for _ in range(steps.WINDOWS)]
    figures = summary(windows, world) | {"peak_rss": environment.peak_rss()}
    running.finish()
    figures["ms_by_stage"] = stages.by_stage(running, range(min(size, _STAGED)), parts.device)
    figures |= _composition(parts, running, figures["triples_per_second"]["median"])
    report(folder, parts, figures | {"dtype": config["train"]["dtype"]})


def _composition(parts: Parts, running: Steps, triples_per_second: float) -> dict[str, Any]:
    """What a whole step consists of, and the rates that follow from that of its triples. Flops, products and bytes are
    those of rank 0's part."""
    threads, objective = torch.get_num_threads(), running.objective
    with running.by_one_thread():
        work = running.prepare(0)
        flops, done = products.recorded(lambda: running.run(work))
    of_ranks = {
        "examples": sum(stages.examples(objective, work).values()),
        "candidates": stages.candidates(objective, work, running.entity),
    }
    per_second = triples_per_second / work.batch.total  # steps
    rates = {f"{name}_per_second": per_second * sum(parts.world.gather(name, n)) for name, n in of_ranks.items()}
    of_products = products.alone(done, threads, parts.device) if parts.world.rank == 0 else None
    parts.world.barrier("the products of rank 0")
    moved = stages.moved(work, running.entity, running.relation)
    gflops = flops * per_second / 1e9
    return {
        **rates,
        "flops_a_step": flops,
        "gflops": gflops,
        "products": of_products,
        "share_of_products": gflops / of_products["gflops"] if of_products else None,
        "bytes_a_step": moved,
        "gb_per_second": moved["total"] * per_second / 1e9,
        "flops_per_byte": flops / moved["total"],
    }
