"""The contract of row optimizers."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from kgexp.kernels import WIDEST, RowRule, usable

#: Rows that one update takes at a time: its temporaries then stay in the cache.
ROWS = 4096

#: From rows float[u, d] to the gradient float[u, d] of a penalty on them.
RowGradient = Callable[[Tensor], Tensor]


class RowOptimizer(ABC):
    """Updates the touched rows of a table; the state belongs to the rows and moves with them.

    Args:
        lr: the learning rate, which a schedule multiplies by a factor.
        clip: a row's gradient is scaled down to at most this L2 norm first; None leaves it. Row by row, not over
            the whole step, so that it is the same whoever owns which rows.
        max_norm: a touched row is scaled back to at most this L2 norm after its update; None leaves it.

    Attributes:
        penalty: adds to the gradient of every touched row that of a penalty on it, as it is before the update and
            before the gradient is clipped; None adds nothing. The owner of the rows sets it.
        exact_state: names of state tensors that must be kept in the dtype of computing, such as counts, which would
            stand still where they are rounded; the others may be kept in bfloat16.
        signed_state: names of tensors, weights among them, whose numbers may be negative.
    """

    exact_state: tuple[str, ...] = ()
    signed_state: tuple[str, ...] = ("weight",)

    def __init__(self, lr: float, clip: float | None = None, max_norm: float | None = None) -> None:
        self.lr = lr
        self.clip = clip
        self.max_norm = max_norm
        self.penalty: RowGradient | None = None

    @abstractmethod
    def state_shapes(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the state tensors for a table float[rows, dim]; each starts at zero and has `rows` as its
        first dimension."""

    @abstractmethod
    def step_rows(self, weight: Tensor, state: dict[str, Tensor], index: Tensor, grad: Tensor, lr: float) -> None:
        """One step on the rows `index` int64[u] (distinct), with the gradient float[u, d]."""

    @abstractmethod
    def step_all(self, weight: Tensor, state: dict[str, Tensor], grad: Tensor, lr: float) -> None:
        """One step on every row, with the gradient float[n, d]; the same numbers as `step_rows` on all rows."""

    def rule(self, state: dict[str, Tensor]) -> RowRule | None:
        """The same step as a kernel knows it, on this state; None where there is no kernel for it."""
        return None

    @torch.no_grad()
    def step(
        self,
        weight: Tensor,
        state: dict[str, Tensor],
        index: Tensor | None,
        grad: Tensor,
        factor: float = 1.0,
    ) -> None:
        """One step at `factor` times the learning rate, in place on `weight` and `state`.

        Args:
            weight: float[n, d].
            state: the tensors of `state_shapes`.
            index: int64[u], distinct row numbers; None for all rows in order.
            grad: float[u, d], or float[n, d] without an index.
            factor: multiplies the learning rate.
        """
        lr, fused = self.lr * factor, self._fused(weight, state, grad)
        # A kernel has no temporaries, but a penalty has.
        at_once = max(1, len(grad)) if fused and self.penalty is None else ROWS
        for start in range(0, len(grad), at_once):
            piece = slice(start, start + at_once)
            if index is None:
                rows, own, ids = weight[piece], {k: v[piece] for k, v in state.items()}, None
            else:
                rows, own, ids = weight, state, index[piece]
            gradient = grad[piece]
            if self.penalty is not None:
                gradient = gradient + self.penalty(rows if ids is None else rows.index_select(0, ids))
            if fused:
                self._step_fused(rows, own, ids, gradient, lr)
            else:
                self._step_by_operations(rows, own, ids, gradient, lr)

    def _fused(self, weight: Tensor, state: dict[str, Tensor], grad: Tensor) -> bool:
        """Whether a kernel does the step: where it can, it does."""
        kept = weight, *state.values()
        fits = usable(grad, *kept) and weight.shape[1] <= WIDEST and all(t.is_contiguous() for t in kept)
        return fits and self.rule(state) is not None

    def _step_fused(
        self, weight: Tensor, state: dict[str, Tensor], index: Tensor | None, grad: Tensor, lr: float
    ) -> None:
        from kgexp.kernels.rows import step  # not everywhere is Triton to be imported

        rule = self.rule(state)
        assert rule is not None, "only then is a step fused"
        step(rule, weight, index, grad, lr, self.clip, self.max_norm)

    def _step_by_operations(
        self, weight: Tensor, state: dict[str, Tensor], index: Tensor | None, grad: Tensor, lr: float
    ) -> None:
        if self.clip is not None:
            grad = _within(grad, self.clip)
        if index is None:
            self.step_all(weight, state, grad, lr)
            if self.max_norm is not None:
                weight.copy_(_within(weight, self.max_norm))
        else:
            self.step_rows(weight, state, index, grad, lr)
            if self.max_norm is not None:
                weight.index_copy_(0, index, _within(weight.index_select(0, index), self.max_norm))


def _within(rows: Tensor, norm: float) -> Tensor:
    """The rows float[u, d], those longer than `norm` scaled down to it."""
    scale: Tensor = norm / rows.norm(dim=-1, keepdim=True)  # infinite for a row of zeros
    return rows * scale.clamp_(max=1.0)
