"""Benchmarks: every setting of a grid is there, and what they count equals hand-made numbers. Times only have to be."""

import json
import os
import sys
from functools import partial

import pytest
import torch

from kgexp.errors import ConfigError, RankError
from kgexp.tools import bench
from kgexp.tools.benchmarks import grid, machine, products, steps, trainers
from kgexp.tools.benchmarks.train import train
from kgexp.tools.composing import composed
from kgexp.tools.measuring import apart

B, K, D, CHUNK = 100, 30, 12, 50

SMALL = [f"train.batch_size={B}", f"model.dim={D}", "train.threads=1", "train.device=cpu", "regularizer=none"]
TRAIN = [*SMALL, "scoring=negatives", f"scoring.negatives={K}", f"scoring.chunk_size={CHUNK}"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Everything in this process, and no longer than it has to be."""
    threads = torch.get_num_threads()
    for module, names in ((steps, {"SECONDS": 0.01, "WINDOWS": 2}), (products, {"SECONDS": 0.002, "ROUNDS": 2})):
        for name, value in names.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(machine, "rates", partial(machine.rates, seconds=0.001, table=1 << 20))
    for module in (grid, bench, trainers):
        monkeypatch.setattr(module, "apart", lambda work, *given: work(*given))
    yield
    torch.set_num_threads(threads)


def trained(tmp_path, *arguments):
    train(composed(arguments), str(tmp_path))
    return json.loads((tmp_path / "figures.json").read_text())


def test_the_grid_has_every_combination():
    given = ["model=complex,distmult", "model.dim=8,12", "plugins=[json,math]", "seed=3"]
    configs = grid.settings(given, composed)
    assert list(configs) == [f"model={model}, model.dim={dim}" for model in ("complex", "distmult") for dim in (8, 12)]
    chosen = [(config["model"]["_target_"].rpartition(".")[2], config["model"]["dim"]) for config in configs.values()]
    assert chosen == [("ComplEx", 8), ("ComplEx", 12), ("DistMult", 8), ("DistMult", 12)]
    assert all(config["plugins"] == ["json", "math"] and config["seed"] == 3 for config in configs.values())
    assert list(grid.settings(["seed=3"], composed)) == ["as given"]


def test_an_interval_is_no_grid():
    with pytest.raises(ConfigError, match="list values"):
        grid.settings(["optimizer.lr=interval(0.1,1)"], composed)


def test_a_step_is_counted(tmp_path):
    figures = trained(tmp_path, *TRAIN, "model=distmult")
    # The scores of a side, their gradient by queries and that by candidates.
    assert figures["flops_a_step"] == 2 * 3 * 2 * B * K * D
    assert figures["products"]["flops"] == figures["flops_a_step"]
    assert figures["examples_per_second"] == pytest.approx(2 * figures["triples_per_second"]["median"])
    assert figures["candidates_per_second"] == pytest.approx(K * figures["examples_per_second"])
    assert figures["share_of_products"] == pytest.approx(figures["gflops"] / figures["products"]["gflops"])
    assert list(figures["ms_by_stage"]) == ["prepare", "gather", "loss", "update"]
    assert min(figures["ms_by_stage"].values()) > 0 and figures["peak_rss"] > 0
    # Adagrad's state is as wide as the rows: a row is read, then read and written with its state.
    moved = figures["bytes_a_step"]
    assert moved["gathered"] % (4 * D) == 0 and moved["updated"] == 4 * moved["gathered"]


def test_all_entities_are_candidates_and_are_moved(tmp_path):
    figures = trained(tmp_path, *SMALL, "model=distmult", "scoring=onevsall")
    n = round(figures["candidates_per_second"] / figures["examples_per_second"])
    assert n == 2034  # of CoDEx-S
    assert figures["flops_a_step"] == 2 * 3 * 2 * B * n * D
    assert n * 4 * D < figures["bytes_a_step"]["gathered"] < (n + 200) * 4 * D


def test_products_are_done_again_as_they_were():
    a, b, c = torch.randn(3, 5), torch.randn(7, 5), torch.randn(2, 3, 4)

    def work():
        left = a.clone().requires_grad_()
        (left @ b.T).sum().backward()
        torch.bmm(c, c.transpose(1, 2))
        torch.zeros(2, 3, 3).baddbmm_(c, c.transpose(1, 2))
        torch.addmm(torch.zeros(3, 3), a, a.T)

    flops, done = products.recorded(work)
    one, many = 2 * 3 * 5 * 7, 2 * 2 * 3 * 4 * 3
    assert flops == 2 * one + 2 * many + 2 * 3 * 5 * 3 == sum(product.flops for product in done)
    assert [product.name for product in done] == ["mm", "mm", "bmm", "baddbmm_", "addmm"]
    with products.Recorder() as again:
        figures = products.alone(done, 1, torch.device("cpu"))

    def layout(found):
        return {(product.left, product.right, product.strides, product.adds) for product in found}

    assert layout(again.products) == layout(done)
    assert figures["count"] == 5 and figures["flops"] == flops and figures["ms"] > 0
    first = {"operation": "mm", "left": [3, 5], "right": [5, 7], "transposed": [False, True], "count": 1}
    assert figures["shapes"][0] == first


def test_threads_do_the_same_products():
    _, done = products.recorded(lambda: torch.mm(torch.ones(8, 8), torch.ones(8, 8)))
    figures = products.alone(done, 2, torch.device("cpu"))
    assert figures["flops"] == 2 * 8**3 and figures["by"].startswith("threads")
    assert products.alone([], 2, torch.device("cpu")) is None


def test_the_command_writes_what_it_found(tmp_path, capsys):
    figures, table, plot = (tmp_path / name for name in ("all.json", "table.md", "roofline.png"))
    arguments = ["train", *TRAIN, "model=distmult,transe", "--json", str(figures), "--markdown", str(table)]
    assert bench.main([*arguments, "--plot", str(plot)]) == 0
    found = json.loads(figures.read_text())
    assert list(found["settings"]) == ["model=distmult", "model=transe"]
    [rates] = found["machine"]["rates"]
    assert rates["threads"] == 1 and rates["random_rows_per_second"] > 0 and rates["products_gflops"]["bfloat16"]
    best = max(rates["products_gflops"]["float32"].values())
    of_distmult = found["settings"]["model=distmult"]
    assert of_distmult["share_of_machine"] == pytest.approx(of_distmult["gflops"] / best)
    text = table.read_text()
    assert capsys.readouterr().out == text + "\n"
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [row[0].strip("| ") for row in rows] == ["setting", "---", "model=distmult", "model=transe"]
    assert len({len(row) for row in rows}) == 1 and "GFLOP/s" in rows[0]
    assert plot.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_partitions_move_and_training_waits_for_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trainers, "_PASSES", 1)
    cut = ["sharding.partitions=4", "sharding.buffer=2", "train.batch_size=4000"]
    assert bench.main(["swap", *TRAIN, *cut, "--json", "-"]) == 0
    [figures] = json.loads(capsys.readouterr().out)["settings"].values()
    assert figures["slices"] == 16 and 0 < figures["waited"] < 1
    assert min(figures[f"{name}_mb_per_second"] for name in ("fetch", "fetch_cached", "store")) > 0
    assert min(figures["plain"].values()) > 0
    assert figures["read_mb_a_pass"] > 0 and figures["written_mb_a_pass"] > 0


def test_a_setting_that_fails_leaves_the_others(capsys):
    assert bench.main(["train", *TRAIN, "sharding=none,partitioned"]) == 1
    out = capsys.readouterr().out
    assert "| sharding=none |" in out and "- sharding=partitioned: these steps have all rows in memory" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "model.dim=0"], "model.dim"),
        (["train", "model=nosuch"], "the choices are"),
        (["swap", "storage=memory"], "use storage=local"),
        (["swap", "sharding=rowwise"], "leave the other choice out"),
        (["exchange", "sharding=partitioned"], "leave the other choice out"),
        (["scaling", "--plot", "x.png"], "leave --plot out"),
    ],
)
def test_bad_arguments_end_with_a_sentence(arguments, sentence, capsys):
    assert bench.main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_an_unknown_suite_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["sing"])
    assert "train" in capsys.readouterr().err


def test_a_plot_says_that_it_wants_matplotlib(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "kgexp.tools.benchmarks.roofline", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench.main(["train", "--plot", "x.png"]) == 2
    assert "pip install" in capsys.readouterr().err


def test_a_setting_has_a_process_of_its_own():
    assert apart(os.getpid) != os.getpid()
    with pytest.raises(RankError, match="killed"):
        apart(os._exit, 1)
