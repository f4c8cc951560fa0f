"""Adagrad on touched rows (Duchi, Hazan and Singer, JMLR 2011), per number and per row."""

from torch import Tensor

from kgexp.kernels import RowRule
from kgexp.optim.base import RowOptimizer


class Adagrad(RowOptimizer):
    """w ← w - lr · g / (√s + eps) with s ← s + g², for every number: the state is as large as the table.

    A row that a step does not touch keeps weight and state, as it would with a gradient of zero.
    """

    def __init__(
        self, lr: float = 0.1, eps: float = 1e-10, clip: float | None = None, max_norm: float | None = None
    ) -> None:
        super().__init__(lr, clip, max_norm)
        self.eps = eps

    def state_shapes(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
        """`sum` float[rows, dim]: the sum of squared gradients."""
        return {"sum": (rows, dim)}

    def step_rows(self, weight: Tensor, state: dict[str, Tensor], index: Tensor, grad: Tensor, lr: float) -> None:
        """See `RowOptimizer.step_rows`."""
        squares = grad * grad
        scale = state["sum"].index_select(0, index).add_(squares).sqrt_().add_(self.eps)
        # index_add_ is the fastest scatter that torch has on the CPU, several times faster than index_copy_. The sum is
        # not read back: another thread may have written an older one there, and too small a sum makes a huge step.
        state["sum"].index_add_(0, index, squares)
        weight.index_add_(0, index, grad / scale, alpha=-lr)

    def step_all(self, weight: Tensor, state: dict[str, Tensor], grad: Tensor, lr: float) -> None:
        """See `RowOptimizer.step_all`."""
        state["sum"].add_(grad * grad)
        weight.add_(grad / state["sum"].sqrt().add_(self.eps), alpha=-lr)

    def rule(self, state: dict[str, Tensor]) -> RowRule | None:
        """See `RowOptimizer.rule`."""
        return RowRule("adagrad", numbers=(state["sum"],), eps=self.eps)


class RowwiseAdagrad(Adagrad):
    """w ← w - lr · g / (√s + eps) with s ← s + mean(g²) over the row: one number of state a row.

    It halves the memory and the traffic of Adagrad; PyTorch-BigGraph (Lerer et al., SysML 2019) trains with it.
    """

    def state_shapes(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
        """`sum` float[rows]: the sum over steps of the mean squared gradient."""
        return {"sum": (rows,)}

    def step_rows(self, weight: Tensor, state: dict[str, Tensor], index: Tensor, grad: Tensor, lr: float) -> None:
        """See `RowOptimizer.step_rows`."""
        squares = (grad * grad).mean(dim=-1)
        scale = state["sum"].index_select(0, index).add_(squares).sqrt_().add_(self.eps)
        state["sum"].index_add_(0, index, squares)
        weight.index_add_(0, index, grad / scale.unsqueeze(-1), alpha=-lr)

    def step_all(self, weight: Tensor, state: dict[str, Tensor], grad: Tensor, lr: float) -> None:
        """See `RowOptimizer.step_all`."""
        state["sum"].add_((grad * grad).mean(dim=-1))
        weight.add_(grad / state["sum"].sqrt().add_(self.eps).unsqueeze(-1), alpha=-lr)

    def rule(self, state: dict[str, Tensor]) -> RowRule | None:
        """See `RowOptimizer.rule`."""
        return RowRule("rowwise_adagrad", each=state["sum"], eps=self.eps)
