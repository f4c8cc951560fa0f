"""Trainers on two machines that have no folder in common: the second one sees nothing of the first one's disk."""

import os
import shutil
import socket
import subprocess
import sys

import pytest
import torch
from conftest import ENVIRONMENT

#: Runs a command that sees an empty folder of its own in the place of the first argument.
APART = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']


def possible(folder) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*APART, str(folder), "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_apart(command, *overrides: str) -> str:
    """A run of two ranks, each the only one of its machine; what the first has said."""
    launched = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first = command.start(*overrides, RANK="0", **launched)
    second = subprocess.Popen(
        [*APART, str(command.home), sys.executable, "-m", "kgexp"],
        env=os.environ | ENVIRONMENT | launched | {"RANK": "1"},
    )
    try:
        said, error = first.communicate(timeout=100)
        assert (first.returncode, second.wait(20)) == (0, 0), error
    finally:
        first.kill()
        second.kill()
    return said


@pytest.mark.slow
def test_trainers_without_a_common_folder_give_the_tables_of_those_that_have_one(make_command, tmp_path):
    if not possible(tmp_path):
        pytest.skip("this machine makes no folder that one process sees and another does not")
    options = ("sharding=partitioned", "sharding.partitions=4", "sharding.buffer=2", "scoring=negatives")
    options = (*options, "tracking=none", "evaluation.splits=[]", "checkpoint.every_epochs=1", "checkpoint.keep=9")
    together, apart = make_command("together"), make_command("apart")
    assert together.run(*options, "sharding.ranks=2", "train.epochs=3").returncode == 0
    assert "no folder in common" in run_apart(apart, *options, "train.epochs=2")
    assert "resuming after step" in run_apart(apart, *options, "train.epochs=3", "resume=auto")
    for newest in (together, apart):
        assert newest.result["epoch"] == 3
    for one, two in zip(together.checkpoints(), apart.checkpoints(), strict=True):
        left, right = together.tensors(one), apart.tensors(two)
        assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
