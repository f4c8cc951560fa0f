"""Adam on touched rows (Kingma and Ba, ICLR 2015)."""

from collections.abc import Sequence

from torch import Tensor

from kgexp.kernels import RowRule
from kgexp.optim.base import RowOptimizer


class Adam(RowOptimizer):
    """w ← w - lr · m̂ / (√v̂ + eps), with m and v the running means of g and g² (algorithm 1 of the paper).

    m̂ = m / (1 - β₁ᵗ) and v̂ = v / (1 - β₂ᵗ), where t counts the steps that touched this row: a row that is first
    touched late begins with a step of lr, as any other did. (By a count of all steps, as in torch's SparseAdam, it
    would begin with one (1 - β₁) / √(1 - β₂) times as long, 3.2 by default.) A row that a step does not touch keeps
    weight and state; its means do not decay.

    Args:
        lr: the learning rate.
        betas: decay of the means, β₁ and β₂, each in [0, 1).
        eps: added to the root, against division by zero.
        clip, max_norm: see `RowOptimizer`.
    """

    exact_state = ("step",)
    signed_state = ("weight", "exp_avg")

    def __init__(
        self,
        lr: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip: float | None = None,
        max_norm: float | None = None,
    ) -> None:
        super().__init__(lr, clip, max_norm)
        self.beta1, self.beta2 = betas
        self.eps = eps

    def state_shapes(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
        """`exp_avg` and `exp_avg_sq` float[rows, dim]: the running means; `step` float[rows]: steps that touched the
        row, exact up to 2²⁴ in float32, from where on both corrections are one."""
        return {"exp_avg": (rows, dim), "exp_avg_sq": (rows, dim), "step": (rows,)}

    def step_rows(self, weight: Tensor, state: dict[str, Tensor], index: Tensor, grad: Tensor, lr: float) -> None:
        """See `RowOptimizer.step_rows`."""
        rows = {name: tensor.index_select(0, index) for name, tensor in state.items()}
        weight.index_add_(0, index, self._direction(rows, grad), alpha=-lr)
        for name, tensor in state.items():
            tensor.index_copy_(0, index, rows[name])

    def step_all(self, weight: Tensor, state: dict[str, Tensor], grad: Tensor, lr: float) -> None:
        """See `RowOptimizer.step_all`."""
        weight.add_(self._direction(state, grad), alpha=-lr)

    def rule(self, state: dict[str, Tensor]) -> RowRule | None:
        """See `RowOptimizer.rule`."""
        means = state["exp_avg"], state["exp_avg_sq"]
        return RowRule("adam", numbers=means, each=state["step"], eps=self.eps, betas=(self.beta1, self.beta2))

    def _direction(self, state: dict[str, Tensor], grad: Tensor) -> Tensor:
        """Takes the gradient float[u, d] into the state of its rows, in place, and gives m̂ / (√v̂ + eps)."""
        mean = state["exp_avg"].lerp_(grad, 1 - self.beta1)
        square = state["exp_avg_sq"].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        # In float64 on the few counts: 1 - β₂ᵗ of a first step would lose three digits in float32.
        step = state["step"].add_(1).double().unsqueeze(-1)
        correction1 = (1 - self.beta1**step).to(grad.dtype)
        correction2 = (1 - self.beta2**step).sqrt_().to(grad.dtype)
        scale = (square.sqrt() / correction2).add_(self.eps).mul_(correction1)
        return mean / scale
