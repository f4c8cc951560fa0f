"""Stochastic gradient descent on touched rows (Robbins and Monro 1951)."""

from torch import Tensor

from kgexp.kernels import RowRule
from kgexp.optim.base import RowOptimizer


class SGD(RowOptimizer):
    """w ← w - lr · g, without any state: the table is all there is in memory."""

    def __init__(self, lr: float = 0.1, clip: float | None = None, max_norm: float | None = None) -> None:
        super().__init__(lr, clip, max_norm)

    def state_shapes(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
        """None."""
        return {}

    def step_rows(self, weight: Tensor, state: dict[str, Tensor], index: Tensor, grad: Tensor, lr: float) -> None:
        """See `RowOptimizer.step_rows`."""
        weight.index_add_(0, index, grad, alpha=-lr)

    def step_all(self, weight: Tensor, state: dict[str, Tensor], grad: Tensor, lr: float) -> None:
        """See `RowOptimizer.step_all`."""
        weight.add_(grad, alpha=-lr)

    def rule(self, state: dict[str, Tensor]) -> RowRule | None:
        """See `RowOptimizer.rule`."""
        return RowRule("sgd")
