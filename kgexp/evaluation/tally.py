"""How many numbers of every row of a matrix lie above a bound: where it costs a tenth of the matrix product that makes
the numbers, torch's own operations would cost half of it."""

import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_WORD = 8  # flags that are added at once, as the bytes of an integer
_WORDS = 255  # that may be added before a byte overflows


class Scratch(threading.local):
    """Memory by name that is used again and again, of each thread its own: fresh pages cost more than what is done in
    them."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def of(self, name: str, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory of that shape, with whatever was left there."""
        needed = rows * columns
        memory = self._memory.get(name)
        if memory is None or memory.numel() < needed or memory.dtype != dtype or memory.device != device:
            memory = self._memory[name] = torch.empty(needed, dtype=dtype, device=device)
        return memory[:needed].view(rows, columns)


class Flags:
    """bool[b, k], which comparisons fill some columns at a time.

    Args:
        memory: bool[b, w], of a width that `width` gives for k.
        columns: k.
    """

    def __init__(self, memory: Tensor, columns: int) -> None:
        self._memory = memory
        memory[:, columns:] = False
        self.values = memory[:, :columns]

    @staticmethod
    def width(columns: int) -> int:
        """How many flags wide the memory for so many columns has to be."""
        return -(-columns // _WORD) * _WORD

    def above(self, piece: slice, numbers: Tensor, bound: Tensor) -> None:
        """Flags numbers float[b, c] of a piece of the columns that are greater than the bound float[b, 1] of their
        row."""
        _compare(np.greater, torch.gt, numbers, bound, self.values[:, piece])

    def below(self, piece: slice, numbers: Tensor, bound: Tensor) -> None:
        """Flags those that are less."""
        _compare(np.less, torch.lt, numbers, bound, self.values[:, piece])

    def count(self) -> Tensor:
        """int64[b], the flags of each row that are set."""
        counts = torch.zeros(len(self._memory), dtype=torch.int64, device=self._memory.device)
        for words in self._memory.view(torch.int64).split(_WORDS, dim=1):
            counts += words.sum(dim=1).view(torch.uint8).view(-1, _WORD).sum(dim=1)
        return counts


def _compare(on_cpu: np.ufunc, elsewhere: Callable[..., Tensor], numbers: Tensor, bound: Tensor, flags: Tensor) -> None:
    """NumPy takes a third of the time that torch takes on the CPU."""
    if numbers.device.type == "cpu":
        on_cpu(numbers.numpy(), bound.numpy(), out=flags.numpy())
    else:
        elsewhere(numbers, bound, out=flags)
