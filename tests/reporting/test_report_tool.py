"""The command: what lies in the folder afterwards, and what people are told."""

import csv
import sys

import pytest
from sweep_folders import MRR, TEST, config, listed, trial

from kgexp.tools import report


@pytest.fixture
def sweep(tmp_path):
    folder = tmp_path / "sweep"
    for model in ("complex.ComplEx", "distmult.DistMult"):
        for lr in (0.001, 0.01, 0.5):
            for seed in (1, 2):
                number = len(list(folder.glob("*")))
                mrr = 0.3 + lr / 10 + seed / 100 + len(model) / 1000
                trial(folder, f"{number}-{model}", config(model, seed, optimizer__lr=lr), mrr)
    trial(folder, "12-x", config(seed=3), 0.1, "failed", error="ValueError: a | b\nmore")
    trial(folder, "13-x", config(seed=4), 0.1, "pruned", epoch=2.0)
    trial(folder, "14-x", config(seed=5), status="running")
    return folder


def png_size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_a_report_of_a_sweep(sweep, capsys):
    assert report.main([str(sweep)]) == 0
    out = sweep / "report"
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith(f"report: {out / 'report.md'}")
    assert "15 trials: 12 finished, 1 pruned, 1 running, 1 failed" in printed and MRR in printed
    page = (out / "report.md").read_text()
    assert f"python -m kgexp.tools.report {sweep}" in page
    assert "| 12 | ComplEx lr=0.1 seed=3 | failed | ValueError: a \\| b |" in page
    assert f"### `{TEST}mr`\n\nBest first: smaller is better." in page
    for name in ("curves", "parallel", "seeds"):
        assert f"({name}.png)" in page
        assert all(300 < side < 4000 for side in png_size(out / f"{name}.png"))
    # Again, now that its own folder lies among the trials.
    assert report.main([str(sweep), "--no-plots", "--out", str(sweep / "again")]) == 0
    assert sorted(path.name for path in (sweep / "again").iterdir()) == ["report.md", "trials.csv"]


def test_numbers_for_programs_are_exact(sweep):
    third = 1 / 3
    trial(sweep, "15-x", config(seed=6, optimizer__lr=1e-7 / 3), third)
    assert report.main([str(sweep), "--no-plots"]) == 0
    with open(sweep / "report" / "trials.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    last = rows[-1]
    assert (last["number"], last["model"], last["status"]) == ("15", "ComplEx", "finished")
    assert float(last["objective"]) == float(last[MRR]) == third and float(last["optimizer.lr"]) == 1e-7 / 3
    assert (last["seconds/train"], last["triples_per_second"], last["peak_rss"]) == ("10.0", "1000.0", "5000000.0")
    assert rows[12]["error"] == "ValueError: a | b" and rows[12][TEST + "mrr"] == ""
    assert not {"name", "tracking.name", "dataset.path"} & set(last)


def test_several_sweeps_are_one_report(sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    trial(other, "0-x", config(seed=3, optimizer__lr=0.5), 0.5)
    listed(other, {"folder": "0-x"}, {"overrides": ["seed=9"], "status": "failed", "error": "no"}, name="second sweep")
    assert report.main([str(sweep), str(other), "--no-plots"]) == 0
    (out,) = (tmp_path / "outputs" / "reports").iterdir()
    page = (out / "report.md").read_text()
    assert page.startswith("# Sweeps sweep, second sweep\n")
    assert "| second sweep 1 | seed=9 | failed | no |" in page
    # Its trial is a further seed of a configuration of the first one: 0.3 + 0.05 + 0.015 + 0.01, 0.02 and 0.5.
    assert "| ComplEx | 0.5 | 0.4200 | ± 0.0695 | 3 | 0.3750 | 0.5000 |" in page


def test_sweeps_of_one_name_go_by_their_folders(tmp_path):
    sweeps = [tmp_path / day / "12-00-00" for day in ("monday", "tuesday")]
    for sweep in sweeps:
        trial(sweep, "0-x", config(), 0.4)
    assert report.main([*map(str, sweeps), "--no-plots", "--out", str(tmp_path / "out")]) == 0
    with open(tmp_path / "out" / "trials.csv", newline="") as file:
        assert [row["sweep"] for row in csv.DictReader(file)] == list(map(str, sweeps))


def test_graphs_have_parts_of_their_own(tmp_path):
    for i, graph in enumerate(("UMLS", "UMLS", "my graph")):
        settings = config(seed=i, dataset__name=graph, dataset__path=f"/data/{graph}")
        trial(tmp_path, f"{i}-x", settings, 0.4 + i / 10, fingerprint=graph)
    assert report.main([str(tmp_path)]) == 0
    page = (tmp_path / "report" / "report.md").read_text()
    first, second = page.split("\n# ")[1:]
    assert first.startswith("UMLS\n\n2 trials: 2 finished.") and "(curves-UMLS.png)" in first
    assert (
        second.startswith("my graph\n")
        and "(curves-my_graph.png)" in second
        and "| ComplEx | 0.6000 |  | 1 |" in second
    )
    assert "| ComplEx | 0.4500 | ± 0.0707 | 2 | 0.4000 | 0.5000 |" in first
    assert {path.name for path in (tmp_path / "report").glob("*.png")} == {
        *("curves-UMLS.png", "seeds-UMLS.png", "curves-my_graph.png")
    }


def test_without_matplotlib_the_rest_is_written(sweep, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "kgexp.reporting."))]:
        if name.startswith("matplotlib") or name.rpartition(".")[2] in ("plots", "parallel", "style"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report.main([str(sweep)]) == 0
    assert "matplotlib is not installed" in " ".join(capsys.readouterr().out.split())
    page = (sweep / "report" / "report.md").read_text()
    assert "matplotlib is not installed" in page and f"### `{MRR}`" in page and ".png" not in page


def test_a_sweep_that_has_just_begun(tmp_path, capsys):
    trial(tmp_path, "0-x", config(), status="running")
    listed(tmp_path, {"folder": "0-x", "status": "running"}, {"overrides": ["seed=2"]}, name="young")
    assert report.main([str(tmp_path)]) == 0
    assert "No trial has finished yet." in (tmp_path / "report" / "report.md").read_text()
    assert not list((tmp_path / "report").glob("*.png"))
    assert "2 trials: 1 running, 1 waiting" in capsys.readouterr().out


def test_errors_are_sentences(tmp_path, capsys):
    assert report.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere is no folder: give that of a sweep" in capsys.readouterr().err
    trial(tmp_path / "sweep", "0-x", config(), 0.4)
    (tmp_path / "file").write_text("")
    assert report.main([str(tmp_path / "sweep"), "--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("error: FileExistsError")
