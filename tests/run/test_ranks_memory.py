"""A rank takes the memory of its rows and of its part of a batch, as much as the run has said before: never more."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from cgroups import Group, groups
from conftest import ENVIRONMENT, LARGE, Command
from memory import anonymous, cost_of_libraries

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc"),
]

RANKS, DIM = 4, 128
SETTINGS = (
    *("sharding=rowwise", "scoring=negatives", f"model.dim={DIM}", "train.batch_size=4000", "checkpoint.keep=1"),
    *("evaluation.every_epochs=0", "evaluation.queries=32", "tracking.progress=none"),
)
#: Of the estimate, what may be measured beyond it, and what may be left of it: it is one from above.
TOLERANCE, SPARE = 0.15, 0.35


def launch(
    command: Command, *overrides: str, within: Sequence[Group] = (), limit: int = 0, begins: int = 0
) -> tuple[list[int], str]:
    """Runs the command in ranks that are started one by one, each in its group; the peak of each, and rank 0's words.

    The peaks are sampled; between the samples only the limit of the group can tell. It is set as soon as a rank holds
    `begins` bytes, in which it has no rows yet: the run's own check divides what a group leaves among the ranks of the
    machine, as if all of them were in it.
    """
    limited = [not within] * RANKS
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = command.home / "log"
    with open(log, "w") as out:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "kgexp", *command.arguments, *SETTINGS, *overrides],
                cwd=command.home,
                env=os.environ | ENVIRONMENT | _launched(rank, port),
                stdout=out,
                stderr=out,
                preexec_fn=within[rank].enter if within else None,
            )
            for rank in range(RANKS)
        ]
        peaks = [0] * RANKS
        try:
            while any(process.poll() is None for process in ranks):
                peaks = [max(peak, anonymous(p.pid)) for peak, p in zip(peaks, ranks, strict=True)]
                for rank in range(RANKS):
                    if not limited[rank] and peaks[rank] > begins:
                        within[rank].limit(limit)
                        limited[rank] = True
                time.sleep(0.002)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    said = log.read_text()
    assert [process.returncode for process in ranks] == [0] * RANKS, said
    assert all(limited)
    return peaks, said


def _launched(rank: int, port: int) -> dict[str, str]:
    values = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": RANKS, "MASTER_PORT": port}
    return {name: str(value) for name, value in values.items()} | {"MASTER_ADDR": "127.0.0.1"}


def test_ranks_take_what_the_run_has_said(tmp_path, large_graph):
    files, cache = large_graph
    command = Command(tmp_path, files)
    command.arguments[2] = f"dataset.cache={cache}"
    libraries = cost_of_libraries()
    peaks, said = launch(command, "train.steps=20")
    print(re.search(r"memory: .*", said)[0])
    estimate = command.result["memory_estimate"]
    limit = round((1 + TOLERANCE) * estimate)
    assert limit < LARGE * DIM * 2 * 4  # the table with Adagrad's sums, which no rank could hold
    with groups(RANKS) as within:
        again, _ = launch(
            *(command, "train.steps=30", "resume=auto"),
            within=within,
            limit=libraries + limit,
            begins=libraries + estimate // 4,
        )
        enforced = "a limit that the system enforces" if within else "not enforced, as there are no control groups"
    for what, found in (("trained", peaks), ("resumed", again)):
        own = [peak - libraries for peak in found]
        shares = [size / estimate for size in own]
        print(
            f"{what}, ranked, saved: {', '.join(f'{size / 1e6:.0f}' for size in own)} MB of the ranks beside "
            f"{libraries / 1e6:.0f} MB of libraries, {min(shares):.2f} … {max(shares):.2f} of the estimate"
        )
        assert all(1 - SPARE < share < 1 + TOLERANCE for share in shares)
    print(f"the resumed ranks ran in {(libraries + limit) / 1e6:.0f} MB each: {enforced}")
    assert command.result["step"] == 30 and len(command.result["peak_rss_of_ranks"]) == RANKS
    assert any("valid/triples" in row for row in command.rows())
