"""The losses as they are defined, and an optimizer that shows the gradient."""

import torch

from kgexp.optim.base import RowOptimizer
from kgexp.scoring.losses import Logistic, MarginRanking, SelfAdversarial, Softmax

LOSSES = {
    "softmax": Softmax(),
    "smoothed softmax": Softmax(label_smoothing=0.3),
    "logistic": Logistic(),
    "equal logistic": Logistic(balanced=False),
    "smoothed logistic": Logistic(label_smoothing=0.3),
    "smoothed equal logistic": Logistic(balanced=False, label_smoothing=0.3),
    "self-adversarial": SelfAdversarial(0.7),
    "margin ranking": MarginRanking(1.3),
}


class Sgd(RowOptimizer):
    """w - g: what a step did to a table is its gradient."""

    def state_shapes(self, rows, dim):
        return {}

    def step_rows(self, weight, state, index, grad, lr):
        weight.index_add_(0, index, grad, alpha=-lr)

    def step_all(self, weight, state, grad, lr):
        weight.sub_(grad, alpha=lr)


def plain_loss(loss, scores, answers):
    """The definition, for the scores of all candidates and the places of the answers among them."""
    n, count = len(scores), len(answers)
    smoothing = getattr(loss, "label_smoothing", 0.0)
    others = [c for c in range(n) if c not in answers]
    if isinstance(loss, Softmax):
        target = torch.full((n,), smoothing / n, dtype=scores.dtype)
        target[answers] += (1 - smoothing) / count
        return -(target * torch.log(torch.exp(scores) / torch.exp(scores).sum())).sum()
    if isinstance(loss, Logistic):
        labels = torch.full((n,), smoothing / n, dtype=scores.dtype)
        labels[answers] += 1 - smoothing
        each = -labels * torch.log(torch.sigmoid(scores)) - (1 - labels) * torch.log(torch.sigmoid(-scores))
        return each[answers].mean() + each[others].mean() if loss.balanced else each.mean()
    if isinstance(loss, SelfAdversarial):
        weights = torch.exp(loss.temperature * scores[others]).detach()
        each = -torch.log(torch.sigmoid(-scores[others])) * weights / weights.sum()
        return -torch.log(torch.sigmoid(scores[answers])).mean() + each.sum()
    return torch.clamp(loss.margin - scores[answers] + scores[others], min=0).mean()
