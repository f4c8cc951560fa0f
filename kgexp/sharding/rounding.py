"""Stochastic rounding to bfloat16: up or down by chance, so that the mean is the number.

A row that moves by less than half a step of its bfloat16 numbers would never move if it were rounded to the nearest;
so do weights stand still below a relative change of 1 / 512, and a running mean that decays by 0.999 does not decay.
Rounded by chance both go on, in the mean exactly (Gupta et al., ICML 2015).
"""

import torch
from torch import Tensor

from kgexp.lanes import lanes

_LOW = 0xFFFF  # the bits of a float32 that bfloat16 does not have


def rounded(values: Tensor, stream: int, ids: Tensor) -> Tensor:
    """float32[u, …] to bfloat16[u, …]; what is in bfloat16 already, infinite or NaN stays.

    Args:
        values: rows.
        stream: of the table, the tensor and the step.
        ids: int64[u], the numbers of the rows in the whole table: on them alone hangs how a row is rounded.
    """
    flat = values.unsqueeze(-1).flatten(1)
    bits = lanes(stream, ids, flat.shape[1]).to(torch.int32).bitwise_and_(_LOW)
    bits = (bits + flat.view(torch.int32)).bitwise_and_(~_LOW)  # sign and magnitude: this goes for both signs
    # A carry out of the bits of a NaN would make something else of it.
    return torch.where(flat.isfinite(), bits.view(torch.float32), flat).to(torch.bfloat16).view_as(values)
