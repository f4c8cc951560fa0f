"""Tables: means and standard deviations by hand, the best first, nothing mixed that cannot be compared."""

import math

import pytest
from sweep_folders import MRR, TEST, config, listed, trial

from kgexp.reporting import tables
from kgexp.reporting.configurations import Spread, comparisons, repeated
from kgexp.reporting.trials import read


@pytest.fixture
def sweep(tmp_path):
    """Three seeds of one configuration, two of another, one of a third; one failed, one pruned."""
    for seed, mrr in ((1, 0.40), (2, 0.43), (3, 0.46)):
        trial(tmp_path, f"{seed}-complex-none", config(seed=seed), mrr)
    for seed, mrr in ((1, 0.30), (2, 0.34)):
        trial(tmp_path, f"{3 + seed}-complex-none", config(seed=seed, optimizer__lr=0.5), mrr)
    trial(tmp_path, "6-distmult-none", config("distmult.DistMult", 1), 0.45)
    trial(tmp_path, "7-distmult-none", config("distmult.DistMult", 2), 0.9, "failed", error="it | broke\nhere")
    trial(tmp_path, "8-distmult-none", config("distmult.DistMult", 3), 0.8, "pruned", epoch=2.0)
    return tmp_path


def only(folder):
    (comparison,) = comparisons(read(folder).trials)
    return comparison


def test_seeds_are_one_line_and_the_best_is_first(sweep):
    table = tables.by_metric(only(sweep), MRR)
    assert [column.name for column in table.columns] == [
        *("model", "optimizer.lr"),
        *("mean", "± std", "n", "min", "max"),
    ]
    best, second, third = table.rows
    assert best == ("DistMult", 0.1, 0.45, None, 1, 0.45, 0.45)  # failed and pruned trials count for nothing
    # The sample's: (0.03² + 0 + 0.03²) / 2 and (0.02² + 0.02²) / 1.
    assert second == ("ComplEx", 0.1, pytest.approx(0.43), pytest.approx(0.03), 3, 0.40, 0.46)
    assert third == ("ComplEx", 0.5, pytest.approx(0.32), pytest.approx(math.sqrt(0.0008)), 2, 0.30, 0.34)
    assert table.texts()[0] == ["DistMult", "0.1", "0.4500", "", "1", "0.4500", "0.4500"]
    assert table.texts()[1][2:5] == ["0.4300", "± 0.0300", "3"]


def test_small_mean_ranks_are_good(sweep):
    comparison = only(sweep)
    assert comparison.lower_is_better(TEST + "mr") and not comparison.lower_is_better(TEST + "mrr")
    means = [row[2] for row in tables.by_metric(comparison, TEST + "mr").rows]
    assert means == sorted(means) and means[0] == pytest.approx(10 / 0.45)


def test_the_best_of_a_class_is_chosen_by_validation(sweep):
    # Of the second configuration, the test metrics are better than all others.
    for number in (4, 5):
        settings = config(seed=number - 3, optimizer__lr=0.5)
        metrics = {MRR: 0.3, TEST + "mrr": 0.99}
        folder = sweep / f"{number}-complex-none"
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        trial(sweep, folder.name, settings, 0.3, metrics=metrics)
    table = tables.best_by_model(only(sweep), MRR)
    assert [column.name for column in table.columns] == ["", "DistMult", "ComplEx"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["optimizer.lr"] == ("0.1", "0.1") and rows["seeds"] == ("1", "3")
    assert rows[MRR] == ("0.4500", "0.4300 ± 0.0300")
    assert rows[TEST + "mrr"] == ("0.4400", "0.4200 ± 0.0300")
    assert list(rows)[-5:] == [TEST + name for name in ("mrr", "hits@1", "hits@3", "hits@10", "mr")]


def test_cost_is_a_mean_over_seeds(sweep):
    slow = {"train": 40.0, "evaluate": 5.0}
    trial(sweep, "9-complex-none", config(seed=4), 0.43, seconds=slow, peak_rss=9_000_000, best_step=20)
    rows = tables.cost(only(sweep)).rows
    assert rows[1] == (
        "ComplEx",
        0.1,
        4,
        17.5,
        3.5,
        1000.0,
        9_000_000.0,
        3.5,
    )  # (3·10 + 40)/4, (3·3 + 5)/4, (3·4 + 2)/4
    trials = read(sweep).trials
    assert tables.hours(trials) == pytest.approx((8 * 13 + 45) / 3600)


def test_failures_and_pruned_trials(sweep):
    listed(sweep, {"status": "failed", "error": "no", "overrides": ["model.dim=-1"]}, name="refused")
    trials = read(sweep).trials
    assert tables.failures(trials).rows == (("0", "model.dim=-1", "failed", "no"),)
    (sweep / "sweep.json").unlink()
    trials = read(sweep).trials
    assert tables.failures(trials).rows == (("7", "DistMult lr=0.1 seed=2", "failed", "it | broke"),)
    assert tables.pruned(trials) == "1 pruned: 1 at epoch 2"
    assert tables.counts(trials) == "8 trials: 6 finished, 1 pruned, 1 failed"


def test_a_repeated_seed_is_no_further_sample(sweep):
    trial(sweep, "9-complex-none", config(seed=3), 0.46)
    comparison = only(sweep)
    assert comparison.ranked(MRR)[1][1] == Spread(*(pytest.approx(x) for x in (0.43, 0.03, 3, 0.40, 0.46)))
    assert repeated([comparison]) == 1


def test_other_protocols_and_other_graphs_have_tables_of_their_own(sweep):
    sampled = "sampled@100(uniform)/realistic/both/mrr"
    metrics = {f"valid/{sampled}": 0.8, f"test/{sampled}": 0.7}
    settings = config(seed=1, train__batch_size=100)
    trial(sweep, "9-a", settings, objective_name=f"valid/{sampled}", objective=0.8, metrics=metrics)
    trial(sweep, "10-b", config(seed=1, dataset__name="other"), 0.99, fingerprint="beef")
    toy, other = comparisons(read(sweep).trials)
    assert (toy.graph, other.graph) == ("toy", "other")
    assert toy.metrics() == [MRR, f"valid/{sampled}", *toy.test_metrics()]
    assert toy.test_metrics() == [*(TEST + m for m in ("mrr", "hits@1", "hits@3", "hits@10", "mr")), f"test/{sampled}"]
    assert len(tables.by_metric(toy, f"test/{sampled}").rows) == 1
    assert max(row[-1] for row in tables.by_metric(toy, MRR).rows) == 0.46


def test_further_objectives_of_a_sweep_have_their_direction(tmp_path):
    told = {"0-a": [0.4, 9.0], "1-a": [0.3, 3.0]}
    for name, (mrr, seconds) in told.items():
        trial(tmp_path, name, config(optimizer__lr=seconds), mrr)
    entries = [{"folder": name, "status": "finished", "values": values} for name, values in told.items()]
    listed(tmp_path, *entries, objectives={"objective": "maximize", "training": "minimize"})
    comparison = only(tmp_path)
    assert comparison.metrics()[:2] == [MRR, "training"]
    assert [row[2] for row in tables.by_metric(comparison, "training").rows] == [3.0, 9.0]


def test_trials_without_a_configuration_go_by_their_arguments(tmp_path):
    done = {"status": "finished", "values": [0.25]}
    listed(tmp_path, *({"overrides": ["model=rotate", f"seed={seed}"]} | done for seed in (1, 2)))
    table = tables.by_metric(only(tmp_path), "objective")
    assert table.columns[0].name == "configuration"
    assert table.rows == (("model=rotate", 0.25, 0.0, 2, 0.25, 0.25),)
