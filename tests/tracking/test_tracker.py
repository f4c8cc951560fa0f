import io
import json
import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kgexp.errors import KgexpError
from kgexp.tracking.tracker import MuteTracker, Tracker

DISABLED = {"mode": "disabled"}


def rows(folder: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        pytest.fail(f"{name} is not JSON")

    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def test_rows_are_in_the_file_when_log_returns(tmp_path: Path) -> None:
    with Tracker(DISABLED, tmp_path / "new" / "run", {}) as tracker:
        tracker.log(0, {"valid/mrr": 0.25})
        tracker.log(7, {"train/loss": 1.5, "train/triples": 501, "split": "válid"})
        assert rows(tmp_path / "new" / "run") == [
            {"step": 0, "valid/mrr": 0.25},
            {"step": 7, "train/loss": 1.5, "train/triples": 501, "split": "válid"},
        ]


def test_a_rank_that_leaves_the_telling_to_rank_0_is_mute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    online = {"mode": "online", "entity": "nobody"}
    with MuteTracker(online, tmp_path, {}, wandb_id="abc") as tracker:
        tracker.keep(1)
        tracker.log(3, {"train/loss": 1.0})
        tracker.say("nothing")
        tracker.summary({"mrr": 1.0})
        assert (tracker.wandb_id, tracker.sync_command, tracker.rows) == ("abc", None, 0)
    assert rows(tmp_path) == [{"step": 1}, {"step": 2}]
    assert capsys.readouterr() == ("", "")


def test_non_finite_numbers_are_valid_json_that_float_reads(tmp_path: Path) -> None:
    with Tracker(DISABLED, tmp_path, {}) as tracker:
        tracker.log(1, {"a": math.nan, "b": math.inf, "c": -math.inf})
    (row,) = rows(tmp_path)
    assert math.isnan(float(row["a"]))
    assert (float(row["b"]), float(row["c"])) == (math.inf, -math.inf)


def test_doubles_survive_exactly(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 1e-308, 123456789.123456789]
    with Tracker(DISABLED, tmp_path, {}) as tracker:
        for step, value in enumerate(values):
            tracker.log(step, {"x": value})
    assert [row["x"] for row in rows(tmp_path)] == values


def test_a_second_tracker_appends(tmp_path: Path) -> None:
    for step in (1, 2):
        with Tracker(DISABLED, tmp_path, {}) as tracker:
            tracker.log(step, {"x": 1})
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]


def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    with Tracker(DISABLED, tmp_path / "whole", {}) as tracker:
        for step in range(8):
            tracker.log(step, {"train/loss": step / 3})
    with Tracker(DISABLED, tmp_path / "killed", {}) as tracker:
        for step in range(6):
            tracker.log(step, {"train/loss": step / 3})
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "train/lo')  # killed while writing
    with Tracker(DISABLED, tmp_path / "killed", {}) as tracker:
        tracker.keep(4)
        assert tracker.rows == 4
        for step in range(4, 8):
            tracker.log(step, {"train/loss": step / 3})
    whole, killed = (tmp_path / name / "metrics.jsonl" for name in ("whole", "killed"))
    assert killed.read_bytes() == whole.read_bytes()
    assert [file.name for file in (tmp_path / "killed").iterdir()] == ["metrics.jsonl"]


def test_rows_are_counted_and_kept_in_their_order(tmp_path: Path) -> None:
    with Tracker(DISABLED, tmp_path, {}) as tracker:
        tracker.keep(5)  # nothing to keep
        assert list(tmp_path.iterdir()) == [] and tracker.rows == 0
        for step in (1, 5, 5, 9):
            tracker.log(step, {"x": 1})
        assert tracker.rows == 4
        tracker.keep(2)
        tracker.log(6, {"x": 2})
        assert tracker.rows == 3
    assert [row["step"] for row in rows(tmp_path)] == [1, 5, 6]
    with Tracker(DISABLED, tmp_path, {}) as tracker:
        tracker.keep(0)
    assert rows(tmp_path) == []


def test_say_prints_one_line_and_logs_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    with Tracker(DISABLED, tmp_path, {}, stream=stream) as tracker, caplog.at_level(logging.INFO, "kgexp"):
        tracker.say("501 entities at 100 % of memory")
    assert stream.getvalue() == "501 entities at 100 % of memory\n"
    assert [(r.name, r.getMessage()) for r in caplog.records] == [("kgexp", "501 entities at 100 % of memory")]


def test_say_prints_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Tracker(DISABLED, tmp_path, {}) as tracker:
        tracker.say("hello")
    assert capsys.readouterr().out == "hello\n"


def test_disabled_keeps_the_id_of_the_run_that_it_resumes(tmp_path: Path) -> None:
    with Tracker(DISABLED, tmp_path, {}, wandb_id="abc123") as tracker:
        tracker.summary({"test/mrr": 0.3})
        assert tracker.wandb_id == "abc123"
        assert tracker.sync_command is None


BLOCKED = """
import sys
from pathlib import Path
sys.modules["wandb"] = None  # any import of it now fails
from kgexp.errors import ConfigError
from kgexp.tracking.tracker import Tracker
mode, folder = sys.argv[1], Path(sys.argv[2])
keys = dict.fromkeys(("project", "entity", "group", "name", "tags", "notes"))
try:
    with Tracker({"mode": mode, **keys}, folder, {}) as tracker:
        tracker.log(1, {"train/loss": 0.5})
        tracker.summary({"test/mrr": 0.3})
except ConfigError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.parametrize("mode", ["disabled", "offline", "online"])
def test_wandb_is_needed_only_where_it_is_on(mode: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BLOCKED, mode, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    if mode == "disabled":
        assert (done.returncode, done.stderr) == (0, "")
        assert rows(tmp_path) == [{"step": 1, "train/loss": 0.5}]
    else:
        assert done.stderr == (
            f"refused: tracking.mode={mode} needs Weights & Biases, which is not installed: "
            "pip install wandb, or set tracking=none.\n"
        )
        assert done.returncode == 1


def test_an_error_of_the_run_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(KgexpError, match="mine"), Tracker(DISABLED, tmp_path, {}):
        raise KgexpError("mine")
