import json
from pathlib import Path

from kgexp.train.record import Record


def test_one_of_the_ranks_writes(tmp_path: Path) -> None:
    writer = Record(tmp_path)
    writer.update(status="running")
    other = Record(tmp_path, written=False)
    other.update(status="failed", seed=1)
    assert other.values == {"status": "failed", "seed": 1}
    assert json.loads((tmp_path / "result.json").read_text()) == {"status": "running"}
