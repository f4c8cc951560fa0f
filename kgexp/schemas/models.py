"""The choices of `model`."""

from dataclasses import dataclass

from omegaconf import MISSING

from kgexp.schemas.bounds import number, one_of


@dataclass
class Model:
    """`kgexp.models.base.Model`: what every choice has."""

    _target_: str = MISSING
    dim: int = number(at_least=1)
    reciprocal: bool = MISSING
    init: str = one_of("normal", "uniform", "xavier_normal", "xavier_uniform")
    init_scale: float = number(above=0)
    max_norm: float | None = number(above=0)
    entity_dropout: float = number(at_least=0, below=1)


@dataclass
class DistMult(Model):
    """`kgexp.models.distmult.DistMult`."""

    _target_: str = "kgexp.models.distmult.DistMult"
    relation_dropout: float = number(at_least=0, below=1)


@dataclass
class ComplEx(DistMult):
    """`kgexp.models.complex.ComplEx`: the same keys."""

    _target_: str = "kgexp.models.complex.ComplEx"


@dataclass
class TransE(DistMult):
    """`kgexp.models.transe.TransE`."""

    _target_: str = "kgexp.models.transe.TransE"
    norm: str = one_of("l1", "l2")
    margin: float = MISSING


@dataclass
class RotatE(Model):
    """`kgexp.models.rotate.RotatE`, whose relations are angles: none is dropped."""

    _target_: str = "kgexp.models.rotate.RotatE"
    norm: str = one_of("l1", "l2")
    margin: float = MISSING
