"""The contract of losses: of an example, from its answer's score and the scores of other candidates.

Every loss has two forms with the same meaning, each with the gradient of every score by formula. `sampled_` is for a
few candidates a query. Against all entities the scores come in blocks of entities, too many to keep: the loss is then a
statistic that blocks contribute to, a value made of it, and the gradient. There a query may have a set of answers A;
the loss is the mean over the set, and no answer is a negative of another.

A score of minus infinity marks a candidate that takes no part: it is no negative of that query.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from kgexp.scoring.targets import Targets


class Sampled(NamedTuple):
    """Losses float[b], and the derivatives of each by its answer's score float[b] and its negatives' float[b, k]."""

    losses: Tensor
    by_answers: Tensor
    by_negatives: Tensor


class Loss(ABC):
    """What is minimised over the scores of an example."""

    #: Whether `statistic` needs the answers' scores, so that they must be known before any block.
    answers_first = False

    @abstractmethod
    def sampled_(
        self, answers: Tensor, negatives: Tensor, counts: Tensor | int, share: Tensor | float = 1.0
    ) -> Sampled:
        """The losses of queries with one answer each, and their derivatives. No autograd.

        Args:
            answers: float[b], the answers' scores.
            negatives: float[b, k], those of negatives, k at least 1: their memory is the function's to overwrite.
            counts: int64[b], or one for all: the negatives that take part.
            share: what each loss is multiplied by, and so its derivatives: float[b], or one number for all.
        """

    @abstractmethod
    def statistic(self, others: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """What a block of scores float[q, k] contributes, those of the answers minus infinity: float[q, s].

        `own` float[p] are the answers' scores if the loss is `answers_first`.
        """

    @abstractmethod
    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        """The statistic of two blocks together: float[q, s]."""

    @abstractmethod
    def value(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The losses float[q] from the statistic of all blocks and the answers' scores float[p]."""

    @abstractmethod
    def gradient(self, scores: Tensor, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The derivative of the losses by the scores float[q, k] of candidates that are no answers."""

    def statistic_(self, others: Tensor, own: Tensor, targets: Targets) -> tuple[Tensor, Tensor | None]:
        """`statistic`, with what `gradient_` is to be given of it beside what is left in the memory of the scores: that
        is the function's to overwrite."""
        return self.statistic(others, own, targets), None

    def gradient_(self, left: Tensor, kept: Tensor | None, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """Overwrites what `statistic_` has left, float[q, k], with `gradient` divided by a positive factor of each
        query, and returns the factors float[q, 1]."""
        left.copy_(self.gradient(left, statistic, own, targets))
        return left.new_ones(len(left), 1)

    @abstractmethod
    def own_gradient(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The derivative of the losses by the answers' own scores: float[p]."""
