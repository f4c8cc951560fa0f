"""The choices of `scoring`, `loss`, `regularizer` and `auxiliary`."""

from dataclasses import dataclass

from omegaconf import MISSING

from kgexp.schemas.bounds import number, one_of


@dataclass
class OneVsAll:
    """`kgexp.scoring.onevsall.OneVsAll`."""

    _target_: str = "kgexp.scoring.onevsall.OneVsAll"
    sides: str = one_of("both", "head", "tail")
    block: int = number(at_least=0)


@dataclass
class KvsAll(OneVsAll):
    """`kgexp.scoring.kvsall.KvsAll`: the same keys."""

    _target_: str = "kgexp.scoring.kvsall.KvsAll"


@dataclass
class Negatives:
    """`kgexp.scoring.negatives.NegativeSampling`."""

    _target_: str = "kgexp.scoring.negatives.NegativeSampling"
    negatives: int = number(at_least=1)
    chunk_size: int = number(at_least=1)
    sides: str = one_of("both", "head", "tail", "bernoulli")
    degree_exponent: float = number(at_least=0)
    uniform_share: float = number(at_least=0, at_most=1)
    mask: str = one_of("none", "equal", "known")


@dataclass
class OneVsSample:
    """`kgexp.scoring.onevssample.OneVsSample`."""

    _target_: str = "kgexp.scoring.onevssample.OneVsSample"
    samples: int = number(at_least=1)
    sides: str = one_of("both", "head", "tail", "bernoulli")
    mask: str = one_of("none", "equal", "known")


@dataclass
class Softmax:
    """`kgexp.scoring.losses.Softmax`."""

    _target_: str = "kgexp.scoring.losses.Softmax"
    label_smoothing: float = number(at_least=0, below=1)


@dataclass
class Logistic:
    """`kgexp.scoring.losses.Logistic`."""

    _target_: str = "kgexp.scoring.losses.Logistic"
    balanced: bool = MISSING
    label_smoothing: float = number(at_least=0, below=1)


@dataclass
class SelfAdversarial:
    """`kgexp.scoring.losses.SelfAdversarial`."""

    _target_: str = "kgexp.scoring.losses.SelfAdversarial"
    temperature: float = number(at_least=0)


@dataclass
class MarginRanking:
    """`kgexp.scoring.losses.MarginRanking`."""

    _target_: str = "kgexp.scoring.losses.MarginRanking"
    margin: float = number(at_least=0)


@dataclass
class NoRegularizer:
    """No penalty: nothing is built."""

    _target_: str | None = None


@dataclass
class N3:
    """`kgexp.scoring.regularizers.N3`."""

    _target_: str = "kgexp.scoring.regularizers.N3"
    weight: float = number(at_least=0)
    relation_weight: float | None = number(at_least=0)
    weighted: bool = MISSING


@dataclass
class Lp(N3):
    """`kgexp.scoring.regularizers.Lp`."""

    _target_: str = "kgexp.scoring.regularizers.Lp"
    p: float = number(at_least=1)


@dataclass
class NoAuxiliary:
    """No second objective: nothing is built."""

    _target_: str | None = None


@dataclass
class RelationPrediction:
    """`kgexp.scoring.relation_prediction.RelationPrediction`."""

    _target_: str = "kgexp.scoring.relation_prediction.RelationPrediction"
    weight: float = number(at_least=0)
