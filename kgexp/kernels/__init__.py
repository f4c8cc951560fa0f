"""Kernels in Triton for what a training step does most of on a GPU: row updates, and distances of all pairs.

They compute what the torch code beside their callers computes, up to rounding; that code runs wherever these cannot.
Triton comes with torch's builds for GPUs and is imported only where a kernel is launched.
"""

from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

#: Numbers in a row at most for the kernel of updates, which holds rows in registers.
WIDEST = 8192


class RowRule(NamedTuple):
    """A row optimizer's step, as `kgexp.kernels.rows` wants it.

    Attributes:
        name: `sgd`, `adagrad`, `rowwise_adagrad` or `adam`.
        numbers: state float32[n, d].
        each: state float32[n], or None.
        eps: added to the root.
        betas: decay of Adam's means.
    """

    name: str
    numbers: tuple[Tensor, ...] = ()
    each: Tensor | None = None
    eps: float = 0.0
    betas: tuple[float, float] = (0.0, 0.0)


def usable(*tensors: Tensor) -> bool:
    """Whether kernels may compute with these: all float32 on one GPU, and Triton is there."""
    device = tensors[0].device
    on_gpu = device.type == "cuda" and all(t.device == device and t.dtype == torch.float32 for t in tensors)
    return on_gpu and _installed()


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
