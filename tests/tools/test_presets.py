"""The list of experiments: each in its folder, none twice, a failure does not keep the others from their turn."""

import json
import shutil
import subprocess

import pytest

from kgexp.tools import presets

OVERRIDES = ("train.epochs=1", "model.dim=8", "tracking=none", "train.threads=1")


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KGEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("UMLS", "Kinship"):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for split in ("train", "valid", "test"):
            (folder / f"{split}.txt").write_text("".join(f"e{i}\tr\te{(i + 1) % 9}\n" for i in range(9)))
    return tmp_path / "data"


def statuses():
    return {p.parent.name: json.loads(p.read_text())["status"] for p in presets.HOME.glob("*/result.json")}


@pytest.mark.slow
def test_what_failed_is_tried_again_and_what_finished_is_not(data, monkeypatch, capfd):
    shutil.move(data / "UMLS", data / "elsewhere")
    arguments = [str(data), "umls_complex", "kinship_complex", *OVERRIDES]
    assert presets.main(arguments) == 1
    assert statuses() == {"umls_complex": "failed", "kinship_complex": "finished"}
    assert "UMLS does not exist" in capfd.readouterr().out
    shutil.move(data / "elsewhere", data / "UMLS")
    started = []
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: (started.append(command), run(command, **options))[1]
    )
    assert presets.main(arguments) == 0
    assert [command[3] for command in started] == ["experiment=umls_complex"]
    assert statuses() == {"umls_complex": "finished", "kinship_complex": "finished"}
    lines = (presets.HOME / "results.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| kinship_complex", "| umls_complex"]
    mrr = json.loads((presets.HOME / "umls_complex" / "result.json").read_text())["metrics"]
    assert f"{mrr['test/filtered/realistic/both/mrr']:.4f}" in lines[3]


def test_an_experiment_that_is_none_is_named(data, capsys):
    assert presets.main([str(data), "umls_comlex"]) == 1
    assert "did you mean umls_complex?" in capsys.readouterr().err
    assert presets.main([]) == 2
