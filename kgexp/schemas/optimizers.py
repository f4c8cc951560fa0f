"""The choices of `optimizer` and `schedule`."""

from dataclasses import dataclass

from kgexp.schemas.bounds import number


@dataclass
class SGD:
    """`kgexp.optim.sgd.SGD`, and the learning rate of the relations if that is another."""

    _target_: str = "kgexp.optim.sgd.SGD"
    lr: float = number(above=0)
    relation_lr: float | None = number(above=0)
    clip: float | None = number(above=0)


@dataclass
class Adagrad(SGD):
    """`kgexp.optim.adagrad.Adagrad`."""

    _target_: str = "kgexp.optim.adagrad.Adagrad"
    eps: float = number(above=0)


@dataclass
class RowwiseAdagrad(Adagrad):
    """`kgexp.optim.adagrad.RowwiseAdagrad`: the same keys."""

    _target_: str = "kgexp.optim.adagrad.RowwiseAdagrad"


@dataclass
class Adam(Adagrad):
    """`kgexp.optim.adam.Adam`."""

    _target_: str = "kgexp.optim.adam.Adam"
    betas: list[float] = number(at_least=0, below=1)


@dataclass
class Constant:
    """`kgexp.optim.schedule.Constant`."""

    _target_: str = "kgexp.optim.schedule.Constant"
    warmup: int = number(at_least=0)


@dataclass
class Cosine(Constant):
    """`kgexp.optim.schedule.Cosine`."""

    _target_: str = "kgexp.optim.schedule.Cosine"
    min_factor: float = number(at_least=0, at_most=1)


@dataclass
class Step(Constant):
    """`kgexp.optim.schedule.Step`."""

    _target_: str = "kgexp.optim.schedule.Step"
    factor: float = number(above=0, below=1)
    at: list[float] = number(above=0, below=1)


@dataclass
class Plateau(Constant):
    """`kgexp.optim.schedule.Plateau`."""

    _target_: str = "kgexp.optim.schedule.Plateau"
    factor: float = number(above=0, below=1)
    patience: int = number(at_least=0)
    min_factor: float = number(at_least=0, at_most=1)
