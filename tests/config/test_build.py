"""One door from configuration to objects."""

import sys

import pytest

from kgexp.build import build
from kgexp.errors import ConfigError

ADAGRAD = {"_target_": "kgexp.optim.adagrad.Adagrad", "lr": 0.25, "eps": 0.5}

PLUGIN = """
import os.path
from kgexp.errors import DataError

class Holder:
    def __init__(self, inner, size=1):
        self.inner, self.size = inner, size

class Careful:
    def __init__(self):
        raise DataError("the file is empty.")

class Careless:
    def __init__(self):
        raise TypeError("unsupported operand")

constant = 3
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "plugin_of_test.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield ["plugin_of_test"]
    sys.modules.pop("plugin_of_test", None)


def refused(node, plugins=()) -> str:
    with pytest.raises(ConfigError) as caught:
        build(node, plugins=plugins)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_arguments_come_from_the_node_and_from_code():
    optimizer = build(ADAGRAD)
    assert (optimizer.lr, optimizer.eps) == (0.25, 0.5)
    assert build({"_target_": ADAGRAD["_target_"], "lr": 0.25}, eps=2.0).eps == 2.0


def test_null_builds_nothing():
    assert build(None) is None
    assert build({"_target_": None}) is None


@pytest.mark.parametrize(
    "target",
    ["os.system", "builtins.eval", "subprocess.run", "kgexpert.Model", "kgexp", "plugin_of_test_too.Holder"],
)
def test_other_packages_may_not_be_built_from(plugin, target):
    assert "may not be built" in refused({"_target_": target}, plugin)


@pytest.mark.parametrize("target", ["kgexp.cli.os.system", "kgexp.cli.sys.exit", "plugin_of_test.os.path.exists"])
def test_what_a_package_only_imported_is_not_its_own(plugin, target):
    assert "may not be built" in refused({"_target_": target}, plugin)


def test_a_plugin_is_built_from_once_it_is_allowed(plugin):
    node = {"_target_": "plugin_of_test.Holder", "inner": {"_target_": "os.getcwd"}, "size": 2}
    assert "plugins=[plugin_of_test]" in refused(node)
    holder = build(node, plugins=plugin)
    assert holder.size == 2
    assert holder.inner == {"_target_": "os.getcwd"}, "what is nested is not built"


def test_what_is_not_there_or_no_class_is_named(plugin):
    assert "kgexp.optim.adagrad.Adagard" in refused({"_target_": "kgexp.optim.adagrad.Adagard"})
    assert "kgexp.nowhere" in refused({"_target_": "kgexp.nowhere.Model"})
    assert "constant" in refused({"_target_": "plugin_of_test.constant"}, plugin)


def test_arguments_that_do_not_fit_are_named():
    assert "momentum" in refused(ADAGRAD | {"momentum": 0.9})
    assert "weight" in refused({"_target_": "kgexp.scoring.regularizers.N3"})


def test_what_a_constructor_raises_comes_through(plugin):
    from kgexp.errors import DataError

    with pytest.raises(DataError, match=r"^the file is empty\.$"):
        build({"_target_": "plugin_of_test.Careful"}, plugins=plugin)
    with pytest.raises(TypeError, match="unsupported operand"):
        build({"_target_": "plugin_of_test.Careless"}, plugins=plugin)
