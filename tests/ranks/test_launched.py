"""What launchers say in the environment."""

import pytest

from kgexp.errors import ConfigError, RankError
from kgexp.ranks.launched import Launch, expand_counts, first_host, launched

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[08-10],cpu1",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
}
SUBMITIT = {
    "SUBMITIT_EXECUTOR": "local",
    "SUBMITIT_LOCAL_NTASKS": "2",
    "SUBMITIT_LOCAL_GLOBALID": "1",
    "SUBMITIT_LOCAL_LOCALID": "1",
    "SUBMITIT_LOCAL_JOB_ID": "30815",
}


def test_torchrun():
    assert launched(TORCHRUN) == Launch(3, 4, 1, 2, "node7", 29400, attempt=2, keeps_store=True)
    plain = {name: value for name, value in TORCHRUN.items() if not name.startswith("TORCHELASTIC")}
    assert launched(plain) == Launch(3, 4, 1, 2, "node7", 29400)


def test_a_step_of_slurm():
    launch = launched(SLURM)
    assert launch == Launch(6, 7, 0, 1, "gpu08", launch.port)
    assert 12000 <= launch.port < 28000
    assert launched(SLURM | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}) == Launch(0, 7, 0, 2, "gpu08", launch.port)
    assert launched(SLURM | {"SLURM_STEP_ID": "1"}).port != launch.port
    assert launched(SLURM | {"SLURM_JOB_ID": "4712"}).port != launch.port
    given = launched(SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "555"})
    assert (given.host, given.port) == ("10.0.0.1", 555)


def test_a_batch_script_and_a_step_of_one_task_are_not_launched_ranks():
    batch = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert launched(batch) is None
    assert launched(SLURM | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    assert launched({}) is None


def test_torchrun_inside_a_step_of_slurm_is_torchrun():
    assert launched(SLURM | TORCHRUN) == launched(TORCHRUN)


def test_tasks_of_submitit_without_slurm():
    launch = launched(SUBMITIT)
    assert launch == Launch(1, 2, 1, 2, "127.0.0.1", launch.port)
    assert launched(SUBMITIT | {"SUBMITIT_LOCAL_NTASKS": "1"}) is None
    assert launched(SUBMITIT | {"SUBMITIT_EXECUTOR": "slurm"} | SLURM) == launched(SLURM)


@pytest.mark.parametrize("change", [{"MASTER_PORT": None}, {"LOCAL_RANK": None}, {"RANK": "first"}])
def test_an_incomplete_environment_is_named(change):
    environment = {name: value for name, value in (TORCHRUN | change).items() if value is not None}
    with pytest.raises(ConfigError, match=f"{next(iter(change)) if None in change.values() else 'first'}"):
        launched(environment)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node", "node"),
        ("a1,a2", "a1"),
        ("node[01-03]", "node01"),
        ("node[3,7-9],x", "node3"),
        ("rack[2-3]n[004-005]", "rack2n004"),
        ("n[1-2]-ib,m", "n1-ib"),
        ("gpu-a100-[12-13].cluster", "gpu-a100-12.cluster"),
    ],
)
def test_the_first_host_of_a_list(nodes, host):
    assert first_host(nodes) == host


def test_numbers_of_tasks():
    assert expand_counts("4") == [4]
    assert expand_counts("2(x2),1,3(x2)") == [2, 2, 1, 3, 3]


def test_a_store_that_nobody_keeps_is_an_error():
    with pytest.raises(RankError, match=r"rank 1 did not reach the ranks' store at 127\.0\.0\.1:1 .*MASTER_PORT"):
        Launch(1, 2, 1, 2, "127.0.0.1", 1).store(timeout=0.5)
