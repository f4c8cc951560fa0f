"""The losses that come with the package; `kgexp.scoring.loss` says what a loss is."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from kgexp.scoring.loss import Loss, Sampled
from kgexp.scoring.targets import Targets

#: Products of rows that are shorter than this cost as much as the logarithms that they save.
_LONG = 256


class Softmax(Loss):
    """Cross-entropy of the answer among the candidates: log Σ exp(s) - s(answer).

    Against all entities this is the full softmax of Lacroix et al. (ICML 2018); with a set of answers the cross-entropy
    from the distribution that is uniform over it: log Σ exp(s) - mean over A of s (`kl` of Ruffinelli et al. 2020).

    Args:
        label_smoothing: ε; the target distribution becomes (1 - ε) times itself plus ε / n for each of all n
            entities (Szegedy et al., CVPR 2016). Against all entities only.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def sampled_(
        self, answers: Tensor, negatives: Tensor, counts: Tensor | int, share: Tensor | float = 1.0
    ) -> Sampled:
        """See `Loss.sampled_`: the answer is one of the candidates."""
        largest = torch.maximum(negatives.amax(dim=-1), answers)
        exponentials = negatives.sub_(largest.unsqueeze(-1)).exp_()
        answers = answers - largest
        others = exponentials.sum(dim=-1)
        total = others + answers.exp()
        shares = share / total
        return Sampled((total.log() - answers) * share, -others * shares, _scaled_(exponentials, shares))

    def statistic(self, others: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The log-sum-exp of the block and, for label smoothing, its sum."""
        logsumexp = others.logsumexp(dim=-1, keepdim=True)
        return torch.cat([logsumexp, _sum(others)], dim=-1) if self.label_smoothing else logsumexp

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        """The log-sum-exp and the sum of both."""
        return torch.cat([torch.logaddexp(one[:, :1], other[:, :1]), one[:, 1:] + other[:, 1:]], dim=-1)

    def value(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """See `Loss.value`."""
        value = self._total(statistic, own, targets) - (1 - self.label_smoothing) * targets.mean(own)
        if self.label_smoothing:
            value -= self.label_smoothing / targets.n * (statistic[:, 1] + targets.sum(own))
        return value

    def gradient(self, scores: Tensor, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The softmax, less ε / n."""
        softmax = torch.sub(scores, self._total(statistic, own, targets).unsqueeze(-1)).exp_()
        return softmax.sub_(self.label_smoothing / targets.n) if self.label_smoothing else softmax

    def statistic_(self, others: Tensor, own: Tensor, targets: Targets) -> tuple[Tensor, Tensor | None]:
        """See `Loss.statistic_`: the exponentials are left, and the largest score float[q, 1] is kept."""
        if self.label_smoothing:
            return super().statistic_(others, own, targets)
        largest = others.amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(others.dtype).min)
        total = others.sub_(largest).exp_().sum(dim=-1, keepdim=True)
        return total.log_().add_(largest), largest

    def gradient_(self, left: Tensor, kept: Tensor | None, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """See `Loss.gradient_`: nothing is left to do but to divide by the sum of all exponentials."""
        if kept is None:
            return super().gradient_(left, kept, statistic, own, targets)
        factor = (kept - self._total(statistic, own, targets).unsqueeze(-1)).exp_()
        # Answers are divided by it. What is smaller changes no number that an update could show.
        return factor.clamp_(min=torch.finfo(left.dtype).tiny ** 0.75)

    def own_gradient(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The softmax less the target; with one answer and no smoothing it keeps its digits where it is near zero."""
        count = targets.spread(targets.counts).to(own.dtype)
        target = (1 - self.label_smoothing) / count + self.label_smoothing / targets.n
        return torch.expm1(own - targets.spread(self._total(statistic, own, targets))) + (1 - target)

    def _total(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The log-sum-exp of all scores: float[q]."""
        return torch.logaddexp(statistic[:, 0], targets.logsumexp(own))


class Logistic(Loss):
    """Binary cross-entropy: -log σ(s) of the answers and -log σ(-s) of the negatives.

    Args:
        balanced: the mean over the answers plus the mean over the negatives, which weigh the same however many they
            are, as in PyTorch-BigGraph. False is the mean over all candidates together, as in the code of
            ConvE (Dettmers et al., AAAI 2018).
        label_smoothing: ε; a label y of 0 or 1 becomes (1 - ε) y + ε / n, n the number of entities, and the loss
            of a score -y log σ(s) - (1 - y) log σ(-s). Against all entities only.
    """

    def __init__(self, balanced: bool = True, label_smoothing: float = 0.0) -> None:
        self.balanced = balanced
        self.label_smoothing = label_smoothing

    def sampled_(
        self, answers: Tensor, negatives: Tensor, counts: Tensor | int, share: Tensor | float = 1.0
    ) -> Sampled:
        """See `Loss.sampled_`. The sum over the negatives is off by some 1e-7 a negative in float32."""
        # log(1 + exp(s)) = max(s, 0) - log max(σ(s), σ(-s)); the σ is wanted for the gradient anyway.
        plausible = negatives.sigmoid()
        others = negatives.clamp_(min=0).sum(dim=-1)
        likelier = torch.sub(1, plausible, out=negatives)
        others -= _log_product_(torch.maximum(likelier, plausible, out=likelier))
        mine, own = _softplus(-answers), -torch.sigmoid(-answers)
        if self.balanced:
            each = _inverse(counts, others)
            return Sampled((mine + others * each) * share, own * share, _scaled_(plausible, each * share))
        each = _inverse(counts + 1, others) * share
        return Sampled((mine + others) * each, own * each, _scaled_(plausible, each))

    def statistic(self, others: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The sum of the losses of the block's scores."""
        losses = _softplus(others).sum(dim=-1, keepdim=True)
        return losses - self.label_smoothing / targets.n * _sum(others) if self.label_smoothing else losses

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        """The sum of both."""
        return one + other

    def value(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """See `Loss.value`: every entity that is no answer is a negative."""
        answers, others = self._divisors(targets)
        losses = targets.sum(_softplus(-own) + self._missing(targets) * own)
        return losses / answers + statistic[:, 0] / others

    def gradient(self, scores: Tensor, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """σ(s) - ε / n, a mean over the negatives."""
        gradient = torch.sigmoid(scores)
        if self.label_smoothing:
            gradient.sub_(self.label_smoothing / targets.n)
        return gradient.div_(self._divisors(targets)[1].unsqueeze(-1))

    def own_gradient(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """σ(s) - y, a mean over the answers."""
        return (self._missing(targets) - torch.sigmoid(-own)) / targets.spread(self._divisors(targets)[0])

    def _missing(self, targets: Targets) -> float:
        """What smoothing takes from the label of an answer."""
        return self.label_smoothing * (1 - 1 / targets.n)

    def _divisors(self, targets: Targets) -> tuple[Tensor, Tensor]:
        """What the losses of the answers and of the negatives are divided by, int64[q] each."""
        if self.balanced:
            return targets.counts, targets.others
        return torch.full_like(targets.counts, targets.n), torch.full_like(targets.counts, targets.n)


class SelfAdversarial(Loss):
    """-log σ(s(answer)) plus the mean over the negatives of -log σ(-s), weighted by how plausible they are.

    The weights are softmax(temperature · s) over the query's negatives; no gradient flows through them (Sun et al.,
    ICLR 2019, whose code takes half of this loss). Their γ is the margin of a distance model.

    Args:
        temperature: 0 weights all negatives equally, which is the balanced `Logistic`.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature

    def sampled_(
        self, answers: Tensor, negatives: Tensor, counts: Tensor | int, share: Tensor | float = 1.0
    ) -> Sampled:
        """See `Loss.sampled_`."""
        weights = self._tempered(negatives).softmax(dim=-1)
        weights.nan_to_num_(0.0)  # of a query without negatives
        plausible = negatives.sigmoid()
        # log(1 + exp(s)) = max(s, 0) - log(1 - σ(-|s|)); σ(s) is wanted for the gradient anyway.
        others = torch.minimum(plausible, 1 - plausible).neg_().log1p_()
        others = torch.sub(negatives.clamp_(min=0), others, out=others).mul_(weights).sum(dim=-1)
        losses = _softplus(-answers) + others
        return Sampled(losses * share, -torch.sigmoid(-answers) * share, _scaled_(plausible.mul_(weights), share))

    def statistic(self, others: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The logarithms of Σ exp(T s) and of Σ exp(T s) · (-log σ(-s))."""
        tempered = self._tempered(others)
        return torch.stack([tempered.logsumexp(dim=-1), (tempered + _softplus(others).log()).logsumexp(dim=-1)], dim=-1)

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        """Both sums of both."""
        return torch.logaddexp(one, other)

    def value(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """See `Loss.value`: every entity that is no answer is a negative."""
        weights, weighted = statistic.unbind(dim=-1)
        return targets.mean(_softplus(-own)) + (weighted - weights).exp().masked_fill(weights == -math.inf, 0)

    def gradient(self, scores: Tensor, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The weight of the negative times σ(s)."""
        weights = torch.sub(self.temperature * scores, statistic[:, :1]).exp_()
        return weights.mul_(torch.sigmoid(scores))

    def own_gradient(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """-σ(-s), a mean over the answers."""
        return -torch.sigmoid(-own) / targets.spread(targets.counts)

    def _tempered(self, scores: Tensor) -> Tensor:
        """Temperature times score; minus infinity stays what it is, even at temperature 0."""
        tempered = self.temperature * scores
        return tempered if self.temperature else tempered.masked_fill_(scores == -math.inf, -math.inf)


class MarginRanking(Loss):
    """The mean over the negatives of max(0, margin - s(answer) + s) (Bordes et al., NIPS 2013).

    Against all entities a query must have one answer.

    Args:
        margin: by how much the answer should be ahead.
    """

    answers_first = True

    def __init__(self, margin: float = 1.0) -> None:
        self.margin = margin

    def sampled_(
        self, answers: Tensor, negatives: Tensor, counts: Tensor | int, share: Tensor | float = 1.0
    ) -> Sampled:
        """See `Loss.sampled_`."""
        excess = negatives.add_((self.margin - answers).unsqueeze(-1)).clamp_(min=0)
        close = (excess > 0).to(excess.dtype)
        each = _inverse(counts, answers) * share
        by_negatives = _scaled_(close, each)
        return Sampled(excess.sum(dim=-1) * each, -by_negatives.sum(dim=-1), by_negatives)

    def statistic(self, others: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The sum of what is too close, and how many that are."""
        excess = self._excess(others, own)
        return torch.stack([excess.sum(dim=-1), (excess > 0).sum(dim=-1).to(excess.dtype)], dim=-1)

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        """The sums of both."""
        return one + other

    def value(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """See `Loss.value`: every entity that is not the answer is a negative."""
        return statistic[:, 0] / targets.others

    def gradient(self, scores: Tensor, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """1 / (n - 1) for a negative that is too close."""
        close = (self._excess(scores, own) > 0).to(scores.dtype)
        return close.div_(targets.others.unsqueeze(-1))

    def own_gradient(self, statistic: Tensor, own: Tensor, targets: Targets) -> Tensor:
        """The share of the negatives that are too close, negated."""
        return -statistic[:, 1] / targets.others

    def _excess(self, negatives: Tensor, answers: Tensor) -> Tensor:
        """max(0, margin - s(answer) + s): float[b, k]."""
        return F.relu(negatives + (self.margin - answers).unsqueeze(-1))


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) = -log σ(-x); torch's own softplus is the identity above 20, wrong in the ninth digit."""
    return -F.logsigmoid(-x)


def _sum(others: Tensor) -> Tensor:
    """The sum of the scores that take part: float[q, k] to float[q, 1]."""
    return others.masked_fill(others == -math.inf, 0).sum(dim=-1, keepdim=True)


def _inverse(counts: Tensor | int, like: Tensor) -> Tensor | float:
    """1 / count, of none 1: float[b], or one number where all have the same."""
    return counts.clamp(min=1).to(like.dtype).reciprocal() if isinstance(counts, Tensor) else 1 / max(counts, 1)


def _scaled_(rows: Tensor, by: Tensor | float) -> Tensor:
    """Rows float[b, k] times a number each, or all times the same, in place."""
    return rows.mul_(by.unsqueeze(-1) if isinstance(by, Tensor) else by)


def _log_product_(x: Tensor) -> Tensor:
    """Σ log x over the last dimension of numbers from ½ to 1, float[b, k] to float[b]; x is overwritten.

    A logarithm costs ten times as much as a product, and of 16 such numbers none underflows.
    """
    for _ in range(4):
        k = x.shape[-1]
        if k < _LONG or k % 2:
            break
        x = x[..., : k // 2].mul_(x[..., k // 2 :])
    return x.log_().sum(dim=-1)
