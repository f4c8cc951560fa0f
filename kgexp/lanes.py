"""Random bits on tensors: those of `kgexp.randomness`, made where the tensors are, so that a GPU waits for nobody."""

import torch
from torch import Tensor

# One hash gives four numbers of 16 bits.
_LANES = 4


def lanes(stream: int, counters: Tensor, d: int) -> Tensor:
    """Random numbers int16[…, d], every value as likely, for each counter int64[…] (those of a stream all of one d)."""
    hashes = -(-d // _LANES)
    x = counters.unsqueeze(-1) * hashes + torch.arange(hashes, device=counters.device)
    return _bits(stream, x).view(torch.int16)[..., :d]


def _bits(stream: int, counters: Tensor) -> Tensor:
    """The bits of `kgexp.randomness.bits` as int64. It overwrites the counters."""
    return _mix(_mix(counters.mul_(_signed(0x9E3779B97F4A7C15)).add_(_signed(stream))))


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64, in place; the masks undo that a shift to the right copies the sign."""
    x ^= (x >> 30).bitwise_and_((1 << 34) - 1)
    x *= _signed(0xBF58476D1CE4E5B9)
    x ^= (x >> 27).bitwise_and_((1 << 37) - 1)
    x *= _signed(0x94D049BB133111EB)
    x ^= (x >> 31).bitwise_and_((1 << 33) - 1)
    return x


def _signed(x: int) -> int:
    """The 64-bit integer with the same bits."""
    return x - (1 << 64) if x >> 63 else x
