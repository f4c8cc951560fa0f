"""Plots: where things lie, what is left out, and that labels can be read."""

import json

import pytest
from sweep_folders import MRR, config, trial

from kgexp.reporting.configurations import comparisons
from kgexp.reporting.trials import read

pytest.importorskip("matplotlib")

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg

from kgexp.reporting.parallel import axis_of, parallel
from kgexp.reporting.plots import curves, seeds
from kgexp.reporting.style import STYLE, cut, spread_out


@pytest.fixture(autouse=True)
def style():
    with rc_context(STYLE):
        yield


def only(folder):
    (comparison,) = comparisons(read(folder).trials)
    return comparison


def overlapping(plot):
    """Pairs of texts that share a pixel."""
    canvas = FigureCanvasAgg(plot)
    canvas.draw()
    axes = plot.axes[0]
    texts = [*axes.texts, *(axes.get_yticklabels() if axes.axison else [])]
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in texts if text.get_text()]
    return [(a, b) for i, (a, one) in enumerate(boxes) for b, other in boxes[:i] if one.overlaps(other)]


def test_labels_are_moved_apart_and_stay_below_the_top():
    assert spread_out([0.5, 0.9, 0.5], 0.2, 1.0) == pytest.approx([0.4, 0.9, 0.6])
    assert spread_out([0.95, 1.0, 0.2], 0.2, 1.0) == pytest.approx([0.8, 1.0, 0.2])
    assert spread_out([], 0.2, 1.0) == []
    assert cut("abcdefghij", 7) == "abcd…ij"


def test_numbers_are_logarithmic_beyond_two_decades():
    linear = axis_of("lr", [1, 2, 4])
    assert [linear.place(x) for x in (1, 2, 4)] == pytest.approx([0, 1 / 3, 1])
    logarithmic = axis_of("lr", [0.001, 0.1, 1.0])
    assert [logarithmic.place(x) for x in (0.001, 0.1, 1.0)] == pytest.approx([0, 2 / 3, 1])
    partly = axis_of("clip", [1.0, "null", 3.0])
    assert partly.place("null") == 0 < partly.place(1.0) < partly.place(3.0) == 1
    words = axis_of("init", ["n10", "n9", True])
    assert [label for _, label in words.ticks] == ["n9", "n10", "true"]


def test_what_would_say_nothing_is_left_out(tmp_path):
    alone = trial(tmp_path, "0-a", config(), 0.4)
    assert parallel(only(tmp_path), MRR) is None and seeds(only(tmp_path), MRR) is None
    assert curves(only(tmp_path), MRR) is not None
    (alone / "metrics.jsonl").write_text(json.dumps({"step": 20, MRR: 0.2}))
    assert curves(only(tmp_path), MRR) is None


def test_curves_run_over_seconds_else_epochs_else_steps(tmp_path):
    folder = trial(tmp_path, "0-a", config(), 0.4)
    trial(tmp_path, "1-b", config("distmult.DistMult"), 0.3, "pruned")
    axes = curves(only(tmp_path), MRR).axes[0]
    assert axes.get_xlabel() == "training time (s); x: pruned" and axes.get_title(loc="left") == MRR
    assert {text.get_text() for text in axes.texts} == {"ComplEx", "DistMult"}
    rows = [{"step": 20, MRR: 0.2}, {"step": 40, MRR: 0.4}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    axes = curves(only(tmp_path), MRR).axes[0]
    assert axes.get_xlabel().startswith("epoch") and [2.0, 4.0] in [list(line.get_xdata()) for line in axes.lines]
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"epoch": None}))
    assert curves(only(tmp_path), MRR).axes[0].get_xlabel().startswith("step")


def test_twelve_long_labels_do_not_lie_on_each_other(tmp_path):
    for i in range(24):
        name = f"AnExtraordinarilyLongNameOfATechnique{i // 2}"
        settings = config(seed=i % 2, train__batch_size=10 ** (i // 6), optimizer___target_=f"plugin.{name}")
        trial(tmp_path, f"{i}-a", settings, 0.3 + i / 1000)
    comparison = only(tmp_path)
    assert len(comparison.configurations) == 12
    for plot in (curves(comparison, MRR), parallel(comparison, MRR), seeds(comparison, MRR)):
        assert overlapping(plot) == []
