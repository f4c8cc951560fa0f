"""Reading trials: whatever is whole counts, the result is the truth, the sweep knows the rest."""

import subprocess
import sys

import pytest
from sweep_folders import MRR, config, listed, trial

from kgexp.errors import ConfigError
from kgexp.reporting.configurations import comparisons
from kgexp.reporting.keys import varying
from kgexp.reporting.trials import read


def test_without_a_sweep_file_folders_with_results_are_the_trials(tmp_path):
    for number in (0, 2, 10):
        trial(tmp_path, f"{number}-complex-none", config(seed=number), 0.4)
    (tmp_path / "report").mkdir()
    (tmp_path / "multirun.yaml").write_text("")
    sweep = read(tmp_path)
    assert [(t.number, t.seed, t.status, t.objective) for t in sweep.trials] == [
        (0, 0, "finished", 0.4),
        (2, 2, "finished", 0.4),
        (10, 10, "finished", 0.4),
    ]
    assert sweep.name == tmp_path.name == sweep.trials[0].sweep


def test_folders_of_other_names_are_numbered_in_their_order(tmp_path):
    for name in ("umls_complex", "12-00-00-complex", "kinship"):
        trial(tmp_path, name, config(), 0.4)
    assert [(t.number, t.folder.name) for t in read(tmp_path).trials] == [
        (0, "12-00-00-complex"),
        (1, "kinship"),
        (2, "umls_complex"),
    ]


def test_the_result_is_the_truth_unless_its_process_was_killed(tmp_path):
    trial(tmp_path, "0-a", config(), 0.4)
    trial(tmp_path, "1-b", config(seed=2), status="running")
    trial(tmp_path, "2-c", config(seed=3), status="running")
    listed(
        tmp_path,
        {"folder": "0-a", "status": "running"},
        {"folder": "1-b", "status": "failed", "error": "killed\nby the machine"},
        {"folder": "2-c", "status": "running"},
        {"folder": "3-d", "status": "running", "overrides": ["seed=4"]},
        {"status": "failed", "error": "model.dim is -1.", "overrides": ["model.dim=-1"]},
        {"overrides": ["seed=5"]},
    )
    trials = read(tmp_path).trials
    assert [t.status for t in trials] == ["finished", "failed", "running", "running", "failed", "waiting"]
    assert [t.first_line for t in trials] == ["", "killed", "", "", "model.dim is -1.", ""]
    assert trials[3].folder is None and trials[5].overrides == ("seed=5",)
    assert {t.sweep for t in trials} == {"named"}


def test_half_written_files_leave_what_is_whole(tmp_path):
    whole = trial(tmp_path, "0-a", config(), 0.4)
    with open(whole / "metrics.jsonl", "a") as file:
        file.write('{"step": 60, "' + MRR + '": "NaN", "train/epoch": 6.0}\n{"step": 80, "' + MRR + '": 0.')
    half = trial(tmp_path, "1-b", config(), 0.4)
    (half / "result.json").write_text('{"status": "fini')
    (half / "config.yaml").write_text("model: {dim: [")
    (tmp_path / "sweep.json").write_text('{"name": "x", "trials": [{"num')
    first, second = read(tmp_path).trials
    assert [row["step"] for row in first.validations] == [20, 40, 60]
    assert (second.status, second.config, second.objective) == ("running", {}, None)
    listed(tmp_path, {"folder": "1-b", "status": "finished", "values": [0.3]})
    (told,) = read(tmp_path).trials
    assert (told.status, told.objective, told.objective_name) == ("finished", 0.3, "objective")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "is no folder: give that of a sweep"),
        (lambda folder: folder.mkdir(), "holds no trials"),
        (lambda folder: listed(folder), "holds no trials"),
        (lambda folder: trial(folder.parent, folder.name, config()), "is the folder of a single run"),
    ],
)
def test_what_is_no_sweep_is_named(tmp_path, make, said):
    make(tmp_path / "sweep")
    with pytest.raises(ConfigError, match=said):
        read(tmp_path / "sweep")


def test_keys_that_only_follow_a_choice_do_not_vary(tmp_path):
    # What the files of the two classes say: without wanting it, the trials differ in reciprocal and init_scale.
    complex_ = config(seed=1, model__reciprocal=True, model__init_scale=1e-3, model__dim=8)
    rotate = config("rotate.RotatE", 2, model__reciprocal=False, model__init_scale=0.1, model__norm="l2", model__dim=16)
    trial(tmp_path, "0-a", complex_, 0.4)
    trial(tmp_path, "1-b", rotate, 0.4)
    # The first dim is no file's: somebody chose it.
    assert varying(read(tmp_path).trials) == ["model.dim"]
    trial(tmp_path, "2-c", config("rotate.RotatE", 2, model__norm="l1", optimizer__lr=0.5), 0.4)
    assert varying(read(tmp_path).trials)[-2:] == ["model.norm", "optimizer.lr"]


def test_a_graph_is_named_once(tmp_path):
    for i, name in enumerate("ab"):
        trial(tmp_path, f"{i}-x", config(dataset__name=name, dataset__path=f"/data/{name}"), fingerprint=name)
    assert varying(read(tmp_path).trials) == ["dataset.name"]
    assert [(part.graph, part.keys) for part in comparisons(read(tmp_path).trials)] == [("a", ()), ("b", ())]


def test_epochs_to_the_best_go_by_its_row_or_by_its_step(tmp_path):
    trial(tmp_path, "0-a", config(), 0.4, best_step=20)
    bare = trial(tmp_path, "1-b", config(), 0.4, best_step=30)
    (bare / "metrics.jsonl").unlink()
    assert [t.epochs_to_best for t in read(tmp_path).trials] == [2.0, 3.0]


def test_reading_needs_no_torch():
    code = "import sys, kgexp.reporting.page, kgexp.reporting.files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
