"""Stochastic rounding to bfloat16: up or down by chance, so that the mean is the number.

A row that moves by less than half a step of its bfloat16 numbers would never move if it were rounded to the nearest;
so do weights stand still below a relative change of 1 / 512, and a running mean that decays by 0.999 does not decay.
Rounded by chance both go on, in the mean exactly (Gupta et al., ICML 2015).
"""

import torch
from torch import Tensor

from kgexp.lanes import lanes


def rounded(values: Tensor, stream: int, ids: Tensor) -> Tensor:
    """float32[u, …] to bfloat16[u, …]; what is in bfloat16 already, infinite or NaN stays.

    Args:
        values: rows.
        stream: of the table, the tensor and the step.
        ids: int64[u], the numbers of the rows in the whole table: on them alone hangs how a row is rounded.
    """
    flat = values.unsqueeze(-1).flatten(1)
    pattern = flat.view(torch.int32)
    # The upper half of a float32 is the bfloat16 below it in size, the lower half how far the next one is: up if the
    # lower half carries when random bits are added. Both are signed here, which is what the XOR makes up for.
    low = pattern.to(torch.int16)
    up = lanes(stream, ids, flat.shape[1]) > low.bitwise_xor_(0x7FFF)
    high = (pattern >> 16).to(torch.int16).add_(up)
    high.bitwise_or_(flat.isnan().to(torch.int16).neg_())  # the lower half may have been all that made it a NaN
    return high.view(torch.bfloat16).view_as(values)
