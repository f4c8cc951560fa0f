"""A table that memory has no room for is trained, ranked, saved and resumed in what the run has said it would take."""

import os
import re
import subprocess
import sys
import time
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

DIM = 128
SETTINGS = (
    *("sharding=partitioned", "sharding.partitions=16", "sharding.buffer=2", "sharding.slices=2", "storage=local"),
    *("scoring=negatives", f"model.dim={DIM}", "train.batch_size=1000", "checkpoint.keep=1"),
    *("evaluation.every_epochs=0", "evaluation.queries=32", "tracking.progress=none", "tracking.mode=disabled"),
)
#: Of the estimate, what may be measured beyond it, and what may be left of it: it is one from above.
TOLERANCE, SPARE = 0.15, 0.35


def launch(command: Command, *overrides: str, within: Group | None = None) -> tuple[list[tuple[int, int]], str]:
    """Runs the command; how many passes were over and what it held, again and again; and its words.

    Between the samples only the limit of the group can tell.
    """
    log, samples = command.home / "log", []
    with open(log, "w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "kgexp", *command.arguments, *SETTINGS, *overrides],
            cwd=command.home,
            env=os.environ | ENVIRONMENT,
            stdout=out,
            stderr=out,
            preexec_fn=None if within is None else within.enter,
        )
        try:
            while process.poll() is None:
                samples.append((log.read_text().count("loads of partitions"), anonymous(process.pid)))
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, log.read_text()
    return samples, log.read_text()


def test_a_table_larger_than_memory_takes_what_the_run_has_said(tmp_path, large_graph):
    files, cache = large_graph
    command = Command(tmp_path, files)
    command.arguments[2] = f"dataset.cache={cache}"
    libraries = cost_of_libraries()
    trained, said = launch(command, "train.steps=15")
    print(re.search(r"memory: .*", said)[0])
    estimate = command.result["memory_estimate"]
    limit = libraries + round((1 + TOLERANCE) * estimate)
    table = LARGE * DIM * 2 * 4  # with Adagrad's sums
    assert limit < 0.9 * table
    with groups(1) as within:
        for group in within:
            group.limit(limit)
        resumed, _ = launch(command, "train.steps=25", "resume=auto", within=within[0] if within else None)
        enforced = "a limit that the system enforces" if within else "not enforced, as there are no control groups"
    for what, samples in (("trained", trained), ("resumed", resumed)):
        own = max(held for _, held in samples) - libraries
        print(
            f"{what}, ranked, saved: {own / 1e6:.0f} MB beside {libraries / 1e6:.0f} MB of libraries, "
            f"{own / estimate:.2f} of the estimate"
        )
        assert 1 - SPARE < own / estimate < 1 + TOLERANCE
    print(f"resumed in {limit / 1e6:.0f} MB, with a table of {table / 1e6:.0f} MB: {enforced}")
    assert command.result["step"] == 25
    assert sum("valid/triples" in row for row in command.rows()) == 1


def test_memory_does_not_grow_from_pass_to_pass(tmp_path):
    entities, passes = 20_000, 4
    lines = [f"e{i}\tr{i % 5}\te{(7 * i + 1) % entities}\n" for i in range(0, entities, 2)]
    for name, part in (("train", lines[10:]), ("valid", lines[:10])):
        (tmp_path / f"{name}.txt").write_text("".join(part))
    command = Command(tmp_path, tmp_path)
    saved = ("checkpoint.every_epochs=1", "evaluation.every_epochs=1")
    samples, _ = launch(command, f"train.epochs={passes}", *saved)
    peaks = [max(held for over, held in samples if over == number) for number in range(passes)]
    print("peaks of the passes in MB:", ", ".join(f"{peak / 1e6:.1f}" for peak in peaks))
    # The allocator takes a few megabytes more now and then; what two passes leave behind would be a table's worth.
    assert max(peaks[2:]) < peaks[1] + 0.2 * command.result["memory_estimate"]
