"""Losses of an example: its answer's score against the scores of other candidates.

Every loss has two forms with the same meaning. `sampled` is for a few candidates a query and is plain autograd.
Against all entities the scores come in blocks of entities, too many to keep: the loss is then a statistic that
blocks contribute to, a value made of it, and the gradient of each score by formula.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor


class Loss(ABC):
    """What is minimised over the scores of an example."""

    @abstractmethod
    def sampled(self, answers: Tensor, negatives: Tensor) -> Tensor:
        """Scores of the answers float[b] and of negatives float[b, k] to the losses float[b]."""

    @abstractmethod
    def statistic(self, scores: Tensor) -> Tensor:
        """What a block of scores float[b, k], the answers' among them, contributes: float[b]."""

    @abstractmethod
    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        """The statistic of two blocks together: float[b]."""

    @abstractmethod
    def value(self, statistic: Tensor, answers: Tensor, n: int) -> Tensor:
        """The losses float[b] from the statistic of all `n` scores and the answers' scores float[b]."""

    @abstractmethod
    def gradient(self, scores: Tensor, statistic: Tensor, n: int) -> Tensor:
        """The derivative of the losses by the scores float[b, k] of candidates that are not the answer."""

    @abstractmethod
    def answer_gradient(self, statistic: Tensor, answers: Tensor, n: int) -> Tensor:
        """The derivative of the losses by the answers' own scores: float[b]."""


class Softmax(Loss):
    """Cross-entropy of the answer among the candidates: log Σ exp(s) - s(answer).

    Against all entities this is the full softmax of Lacroix et al. (ICML 2018).
    """

    def sampled(self, answers: Tensor, negatives: Tensor) -> Tensor:
        """See `Loss.sampled`: the answer is one of the candidates."""
        return torch.logaddexp(negatives.logsumexp(dim=-1), answers) - answers

    def statistic(self, scores: Tensor) -> Tensor:
        """The log-sum-exp of the block."""
        return scores.logsumexp(dim=-1)

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        """The log-sum-exp of both."""
        return torch.logaddexp(one, other)

    def value(self, statistic: Tensor, answers: Tensor, n: int) -> Tensor:
        """See `Loss.value`."""
        return statistic - answers

    def gradient(self, scores: Tensor, statistic: Tensor, n: int) -> Tensor:
        """The softmax."""
        return torch.sub(scores, statistic.unsqueeze(-1)).exp_()

    def answer_gradient(self, statistic: Tensor, answers: Tensor, n: int) -> Tensor:
        """The softmax less one."""
        return torch.expm1(answers - statistic)


class Logistic(Loss):
    """-log σ(s(answer)) plus the mean over the negatives of -log σ(-s).

    Answer and negatives weigh the same however many negatives there are, as in PyTorch-BigGraph.
    """

    def sampled(self, answers: Tensor, negatives: Tensor) -> Tensor:
        """See `Loss.sampled`."""
        return _softplus(-answers) + _softplus(negatives).mean(dim=-1)

    def statistic(self, scores: Tensor) -> Tensor:
        """The sum of -log σ(-s)."""
        return _softplus(scores).sum(dim=-1)

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        """The sum of both."""
        return one + other

    def value(self, statistic: Tensor, answers: Tensor, n: int) -> Tensor:
        """See `Loss.value`: every other entity is a negative."""
        return _softplus(-answers) + (statistic - _softplus(answers)) / max(n - 1, 1)

    def gradient(self, scores: Tensor, statistic: Tensor, n: int) -> Tensor:
        """σ(s) / (n - 1)."""
        return torch.sigmoid(scores).div_(max(n - 1, 1))

    def answer_gradient(self, statistic: Tensor, answers: Tensor, n: int) -> Tensor:
        """-σ(-s)."""
        return -torch.sigmoid(-answers)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) = -log σ(-x); torch's own softplus is the identity above 20, wrong in the ninth digit."""
    return -F.logsigmoid(-x)
