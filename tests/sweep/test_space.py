"""Hydra's sweep syntax as the space of a search."""

import pytest

pytest.importorskip("optuna")

from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from kgexp.errors import ConfigError
from kgexp.sweep.space import arguments, distributions, within


def space(*overrides: str):
    return distributions(OverridesParser.create().parse_overrides(list(overrides)))


@pytest.mark.parametrize(
    ("swept", "expected"),
    [
        ("interval(0.1,1)", FloatDistribution(0.1, 1.0)),  # both ends can be drawn
        ("interval(-1,10)", FloatDistribution(-1.0, 10.0)),
        ("int(interval(1,10))", IntDistribution(1, 10)),
        ("tag(log,interval(0.01,1))", FloatDistribution(0.01, 1.0, log=True)),
        ("tag(log,int(interval(1,64)))", IntDistribution(1, 64, log=True)),
        ("range(50,401,50)", IntDistribution(50, 400, step=50)),
        ("range(50,400,50)", IntDistribution(50, 350, step=50)),  # the end is left out
        ("range(2,9,3)", IntDistribution(2, 8, step=3)),
        ("range(5)", IntDistribution(0, 4)),
        ("range(0.0,0.9,0.3)", FloatDistribution(0.0, 0.6, step=0.3)),
        ("range(0.0,1.0,0.3)", FloatDistribution(0.0, 0.9, step=0.3)),
        ("1,2", CategoricalDistribution(["1", "2"])),
        ("choice(l1)", CategoricalDistribution(["l1"])),
        ("1.0,1e-3,true", CategoricalDistribution(["1.0", "0.001", "True"])),
        ("'x,y',[1,2]", CategoricalDistribution(["'x,y'", "[1,2]"])),
    ],
)
def test_what_is_swept_becomes_a_distribution(swept, expected):
    assert space("seed=1", f"a.b={swept}") == {"a.b": expected}


def test_steps_of_a_range_of_reals_never_reach_its_end():
    for k in range(1, 40):
        for step in (0.1, 0.3, 0.7, 1.1):
            [found] = space(f"a=range(0.0,{round(k * step, 10)},{step})").values()
            assert found.high == pytest.approx((k - 1) * step, abs=1e-9)


@pytest.mark.parametrize(
    "swept",
    ["interval(3,1)", "tag(log,interval(0,1))", "range(10,1,-2)", "range(3,3)", "interval(0,inf)", "interval(nan,1)"],
)
def test_bounds_that_hold_nothing_are_named(swept):
    with pytest.raises(ConfigError, match="cannot be searched") as refusal:
        space(f"a={swept}")
    assert f"a={swept}" in str(refusal.value)


def test_a_search_needs_something_to_choose():
    with pytest.raises(ConfigError, match="nothing to choose"):
        space("a=1", "b=x")


def test_chosen_values_become_arguments_in_full():
    assert arguments({"a.b": 0.1 + 0.2, "c": 7, "d": "'x,y'"}) == ["a.b=0.30000000000000004", "c=7", "d='x,y'"]


def test_the_values_of_a_configuration_that_a_space_could_choose():
    known = space(
        *("f=interval(0.1,1)", "n=range(2,9,3)", "c=0.10,0.2", "b=true,false", "i=1,2"),
        *("s='x,y',z", "o=interval(0,1)", "m=interval(0,1)", "g=a,b"),
    )
    values = {"f": 1.0, "n": 5, "c": 0.1, "b": True, "i": True, "s": "x,y", "o": 1.5, "m": None, "g": "a"}
    assert within(known, values) == {"f": 1.0, "n": 5, "c": "0.1", "b": "True", "s": "'x,y'", "g": "a"}
    assert within(known, {"n": 6, "g": "c", "f": 1}) == {"f": 1}
