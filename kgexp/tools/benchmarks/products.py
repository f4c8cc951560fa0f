"""The matrix products of a step: noted while it is done once, then done alone, over and over.

A step can be no faster than its products, on operands that wait in the caches, by the same library on the same threads;
its rate over theirs is what is left of that.
"""

import math
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kgexp.team import Team
from kgexp.tools.measuring import now

#: Rounds that are timed, and seconds that each is to take.
ROUNDS, SECONDS = 7, 0.1

_ATEN = torch.ops.aten

#: Operations that are matrix products, by name, with the place of the left operand: where it is 1, the product is
#: added to what is at place 0.
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "baddbmm_": 1}


@dataclass(frozen=True)
class Product:
    """A matrix product [(c,) m, k] @ [(c,) k, n].

    Attributes:
        name: of the operation.
        left, right: shapes of the operands.
        strides: of both; a transposed operand is one whose last stride is not 1.
        dtype: of the operands.
        adds: whether the result is added to what was there.
    """

    name: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    strides: tuple[tuple[int, ...], tuple[int, ...]]
    dtype: torch.dtype
    adds: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return (*self.left[:-1], self.right[-1])

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.left) * self.right[-1]

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        transposed = [
            stride[-1] != 1 and shape[-1] > 1 for stride, shape in zip(self.strides, self._shapes, strict=True)
        ]
        return {"operation": self.name, "left": list(self.left), "right": list(self.right), "transposed": transposed}

    def operands(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Tensors of small numbers for it, laid out as they were, and one for the result."""
        pair = [
            _laid_out(shape, stride, self.dtype, device)
            for shape, stride in zip(self._shapes, self.strides, strict=True)
        ]
        return pair[0], pair[1], torch.zeros(self.shape, dtype=self.dtype, device=device)

    def on(self, operands: tuple[Tensor, Tensor, Tensor]) -> None:
        """Does it."""
        left, right, out = operands
        if self.adds:
            (out.addmm_ if out.dim() == 2 else out.baddbmm_)(left, right)
        else:
            (torch.mm if out.dim() == 2 else torch.bmm)(left, right, out=out)

    @property
    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.left, self.right


class Recorder(TorchDispatchMode):
    """Notes the matrix products of what this thread computes meanwhile, the backward pass included.

    Attributes:
        products: in their order; those of no numbers are left out.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: list[Product] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in _PRODUCTS:
            place = _PRODUCTS[name]
            left, right = args[place], args[place + 1]
            adds = place == 1 and (kwargs or {}).get("beta", 1) != 0
            shapes = tuple(left.shape), tuple(right.shape)
            product = Product(name, *shapes, (left.stride(), right.stride()), left.dtype, adds)
            if product.flops:
                self.products.append(product)
        return func(*args, **(kwargs or {}))


def recorded(work: Callable[[], object]) -> tuple[int, list[Product]]:
    """Floating-point operations of some work and its matrix products; those of one thread, so it has to have no others.

    Elementwise operations are not counted, as everywhere where steps are compared by them.
    """

    def in_place(added: Sequence[int], left: Sequence[int], right: Sequence[int], **_: Any) -> int:
        return 2 * math.prod(left) * right[-1]

    recorder = Recorder()
    # The counter knows no products in place.
    more = dict.fromkeys((_ATEN.addmm_, _ATEN.baddbmm_), in_place)
    with FlopCounterMode(display=False, custom_mapping=more) as counter, recorder:
        work()
    return counter.get_total_flops(), recorder.products


def alone(products: Sequence[Product], threads: int, device: torch.device) -> dict[str, Any] | None:
    """The rate of products alone on so many threads, as JSON values; None where there are none.

    Threads take products from a list and do them by themselves; or each product is cut among all threads. What is
    faster counts, and is named in `by`.
    """
    if not products:
        return None
    flops = sum(product.flops for product in products)
    ways = {"threads take products": _taken} | ({"threads share a product": _shared} if threads > 1 else {})
    if device.type == "cuda":
        ways = {"the device": _shared}
    seconds = {name: way(products, threads, device) for name, way in ways.items()}
    by = min(seconds, key=lambda name: seconds[name])
    return {
        "count": len(products),
        "flops": flops,
        "ms": 1000 * seconds[by],
        "gflops": flops / seconds[by] / 1e9,
        "by": by,
        "shapes": [product.as_dict() | {"count": n} for product, n in Counter(products).items()],
    }


def _taken(products: Sequence[Product], threads: int, device: torch.device) -> float:
    """Seconds of all products, each done by the thread that takes it."""
    team, own = Team(threads), threading.local()

    def work(product: Product) -> None:
        if not hasattr(own, "operands"):
            own.operands = {}
        if product not in own.operands:
            own.operands[product] = product.operands(device)
        product.on(own.operands[product])

    return _timed(lambda times: team.map(work, list(products) * times), device)


def _shared(products: Sequence[Product], threads: int, device: torch.device) -> float:
    """Seconds of all products, one after the other, by all threads."""
    operands = {product: product.operands(device) for product in set(products)}

    def work(times: int) -> None:
        for product in list(products) * times:
            product.on(operands[product])

    return _timed(work, device)


def _timed(work: Callable[[int], object], device: torch.device) -> float:
    """Seconds of one of as many repetitions as make a round: the median over rounds."""

    def once(times: int) -> float:
        begin = now(device)
        work(times)
        return (now(device) - begin) / times

    once(1)
    times = max(1, round(SECONDS / once(1)))
    return statistics.median(once(times) for _ in range(ROUNDS))


def _laid_out(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random numbers small enough that sums of many products stay finite; strides may be 0, of rows that repeat."""
    room = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return torch.randn(room, device=device).mul_(0.01).to(dtype).as_strided(shape, stride)
