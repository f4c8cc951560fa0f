"""How much of a computation over all pairs is held at once."""

import torch

#: Numbers that a piece holds: on the CPU they stay in its cache, a GPU wants more of them at once.
NUMBERS = {"cpu": 1 << 18}
NUMBERS_ELSEWHERE = 1 << 22


def at_a_time(numbers: int, device: torch.device) -> int:
    """How many candidates make a piece, at least one, where each of them makes so many numbers."""
    return max(1, NUMBERS.get(device.type, NUMBERS_ELSEWHERE) // max(1, numbers))
