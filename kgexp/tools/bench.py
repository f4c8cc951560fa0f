"""Speed of training steps and of ranking on this machine, for the configuration that a run would have.

    python -m kgexp.tools.bench train experiment=fb15k237_complex_negatives dataset.path=PATH/FB15k-237
    python -m kgexp.tools.bench evaluate model.dim=200

Prints the machine, the versions and the figures as one JSON object: the median of several windows with the slowest
and the fastest, for machines are noisy. The steps are those of a run, from its batches to its row optimizer.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from kgexp import environment
from kgexp.data.load import load
from kgexp.errors import KgexpError
from kgexp.explain import explain
from kgexp.storage.memory import MemoryStorage
from kgexp.tools.composing import composed
from kgexp.train.assembly import Parts
from kgexp.train.step import train_step

#: Windows that are timed, after one that warms up, and seconds that each takes at least.
_WINDOWS, _SECONDS = 7, 2.0


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    suites: dict[str, Callable[[Parts], dict[str, Any]]] = {"train": _train, "evaluate": _evaluate}
    if not arguments or arguments[0] not in suites:
        print(f"usage: python -m kgexp.tools.bench {{{','.join(suites)}}} [KEY=VALUE …]", file=sys.stderr)
        return 2
    try:
        config = composed(arguments[1:])
        threads = environment.set_threads(config["train"]["threads"])
        device = environment.choose_device(config["train"]["device"])
        parts = Parts.of(config, load(config["dataset"]), device)
        figures = suites[arguments[0]](parts)
    except Exception as error:
        sentence, code = explain(error)
        print(f"error: {sentence}", file=sys.stderr)
        if not isinstance(error, KgexpError) and code == 1:
            raise
        return code
    machine = environment.describe(threads, device)
    peak = {"peak_rss": environment.peak_rss()}
    print(json.dumps({"suite": arguments[0], "arguments": arguments[1:], **figures, **peak, **machine}, indent=1))
    return 0


def _train(parts: Parts) -> dict[str, Any]:
    """Training triples a second."""
    entity, relation = parts.tables(MemoryStorage())
    batches = parts.batches()
    step = 0

    def one_step() -> int:
        nonlocal step
        batch = batches(step)
        train_step(parts.objective, entity, relation, batch)
        step += 1
        return len(batch)

    return {"triples_per_second": _rates(one_step)}


def _evaluate(parts: Parts) -> dict[str, Any]:
    """Queries a second, and what the whole test split took."""
    entity, relation = parts.tables(MemoryStorage())
    evaluator = parts.evaluator(entity, relation, lambda line: None, lambda done, total: None)
    seconds = [evaluator.evaluate("test").seconds for _ in range(3)]
    queries = 2 * len(parts.graph.test.triples)
    median = statistics.median(seconds)
    return {"test_seconds": _spread(seconds), "queries_per_second": queries / median if median else None}


def _rates(work: Callable[[], int]) -> dict[str, float]:
    """Units a second of `work`, which says how many it did."""
    rates = []
    for _ in range(_WINDOWS + 1):
        done, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < _SECONDS:
            done += work()
        rates.append(done / elapsed)
    return _spread(rates[1:])


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
