"""Room beside every row for the average of its weights."""

from torch import Tensor

from kgexp.kernels import RowRule
from kgexp.optim.base import RowOptimizer

#: The name of that state tensor, float[n, d].
AVERAGE = "average"


class Averaged(RowOptimizer):
    """Another optimizer whose rows have one more state tensor, `average`, which its steps leave alone.

    As part of the rows' state it moves and is saved with them, wherever they live. Who fills it is
    `kgexp.train.averaging`.
    """

    def __init__(self, inner: RowOptimizer) -> None:
        super().__init__(inner.lr, inner.clip, inner.max_norm)
        self.exact_state = (*inner.exact_state, AVERAGE)  # rounded, the average of many would lose the last of them
        self.signed_state = (*inner.signed_state, AVERAGE)
        self._inner = inner

    def state_shapes(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
        """Those of the other optimizer, and `average` float[rows, dim]."""
        return self._inner.state_shapes(rows, dim) | {AVERAGE: (rows, dim)}

    def step_rows(self, weight: Tensor, state: dict[str, Tensor], index: Tensor, grad: Tensor, lr: float) -> None:
        """See `RowOptimizer.step_rows`."""
        self._inner.step_rows(weight, _own(state), index, grad, lr)

    def step_all(self, weight: Tensor, state: dict[str, Tensor], grad: Tensor, lr: float) -> None:
        """See `RowOptimizer.step_all`."""
        self._inner.step_all(weight, _own(state), grad, lr)

    def rule(self, state: dict[str, Tensor]) -> RowRule | None:
        """See `RowOptimizer.rule`."""
        return self._inner.rule(_own(state))


def _own(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state without the average."""
    return {name: tensor for name, tensor in state.items() if name != AVERAGE}
