"""What the machine can do: the rates of plain operations, beside which those of a benchmark are read.

Each is that of the fastest of several repetitions, as in STREAM (McCalpin 1995): what disturbs can only make it slower.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kgexp import environment
from kgexp.threads import physical_cores, usable_cpus
from kgexp.tools.measuring import now

#: Seconds for each rate; bytes of a row and, at most, of the table whose rows are read at random.
SECONDS, ROW, TABLE = 0.15, 800, 10**9

#: Seconds of a round of short calls.
_ROUND = 1e-3

#: Rows that are read at a time.
_ROWS = 50_000

#: Sides of the large square product: the largest that takes no longer than a rate may.
_SIDES = (8192, 4096, 2048, 1024, 512)


def rates(threads: int, device_name: str, seconds: float = SECONDS, table: int = TABLE) -> dict[str, Any]:
    """The rates with so many threads, as JSON values.

    Args:
        threads: of every operation; torch has them from now on.
        device_name: `cpu` or `cuda`.
        seconds: for each of the rates.
        table: bytes, at most, of the table whose rows are read at random; no more than a quarter of the free memory.
    """
    torch.set_num_threads(threads)
    device = environment.choose_device(device_name)
    room = min(environment.available_memory(device).values(), default=1 << 32) // 4
    best = _Stopwatch(device, seconds)
    return {
        "device": device.type,
        "threads": threads,
        "products_gflops": {str(dtype).removeprefix("torch."): _products(best, dtype) for dtype in _DTYPES},
        **_memory(best, room),
        **_gather(best, min(table, room)),
        "operation_us": _operation(best),
    }


_DTYPES = (torch.float32, torch.bfloat16)


def hardware() -> dict[str, Any]:
    """What does not depend on threads: cores, memory of the machine or of the control groups around this process."""
    free = environment.available_memory(torch.device("cpu"))
    return {
        "cores": physical_cores(),
        "processors": len(usable_cpus()),
        "cache_bytes": _cache(),
        "free_memory": min(free.values(), default=None),
    }


def peak(found: Mapping[str, Any], dtype: str = "float32") -> float | None:
    """The best rate of matrix products in GFLOP/s, of the shapes that were measured; None for another dtype."""
    return max(found["products_gflops"].get(dtype, {}).values(), default=None)


class _Stopwatch:
    """Seconds of a call in the fastest of the rounds for which there is time, three unless one is too long. A round is
    of as many calls as last a millisecond, so that a GPU is not waited for after each."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device, self.limit = device, seconds

    def __call__(self, action: Callable[[], object]) -> float:
        """How long it takes, at best."""
        self._round(action, 1)  # warms up
        once = self._round(action, 1)
        if once > self.limit:
            return once
        calls = max(1, round(_ROUND / once))
        rounds = [self._round(action, calls) for _ in range(3)]
        while sum(rounds) < self.limit:
            rounds.append(self._round(action, calls))
        return min(rounds) / calls

    def _round(self, action: Callable[[], object], calls: int) -> float:
        begin = now(self.device)
        for _ in range(calls):
            action()
        return now(self.device) - begin


def _products(best: _Stopwatch, dtype: torch.dtype) -> dict[str, float]:
    """GFLOP/s of the product that a chunk of negatives is, and of a large square one."""

    def rate(m: int, n: int, k: int) -> float:
        left, right = (torch.randn(shape, device=best.device).to(dtype) for shape in ((m, k), (k, n)))
        out = torch.empty(m, n, dtype=dtype, device=best.device)
        return 2e-9 * m * n * k / best(lambda: torch.mm(left, right, out=out))

    of_chunk = rate(1000, 1000, 200)
    side = next((side for side in _SIDES if 2e-9 * side**3 / of_chunk <= best.limit), _SIDES[-1])
    return {"1000 x 1000 x 200": of_chunk, f"{side} x {side} x {side}": rate(side, side, side)}


def _memory(best: _Stopwatch, room: int) -> dict[str, Any]:
    """GB/s of copying an array, and of the triad a = b + s c, by the bytes that are read and written."""
    size = min(max(1 << 26, 4 * (_cache() or 0)), 1 << 30, room // 4)
    a, b, c = (torch.ones(size // 4, device=best.device) for _ in range(3))
    copy, triad = best(lambda: a.copy_(b)), best(lambda: torch.add(b, c, alpha=3.0, out=a))
    moved = a.nbytes / 1e9
    return {"array_bytes": a.nbytes, "copy_gb_per_second": 2 * moved / copy, "triad_gb_per_second": 3 * moved / triad}


def _gather(best: _Stopwatch, table: int) -> dict[str, Any]:
    """Rows a second that are read in random order from a large table, and their GB/s."""
    rows = torch.ones(max(1, table // ROW), ROW // 4, device=best.device)  # every page touched
    index = torch.randint(len(rows), (_ROWS,), device=best.device)
    out = torch.empty(_ROWS, ROW // 4, device=best.device)
    took = best(lambda: torch.index_select(rows, 0, index, out=out))
    return {
        "table_bytes": rows.nbytes,
        "row_bytes": ROW,
        "random_rows_per_second": _ROWS / took,
        "random_rows_gb_per_second": out.nbytes / took / 1e9,
    }


def _operation(best: _Stopwatch) -> float:
    """Microseconds of an operation that has next to nothing to do."""
    one = torch.ones(1, device=best.device)
    return 1e6 * best(lambda: one.add_(0.0))


def _cache() -> int | None:
    """Bytes of the largest cache of a processor; None where the system does not say."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size.rstrip("KMG")) * units.get(size[-1:], 1) for size in sizes if size), default=None)
