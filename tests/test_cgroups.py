"""Free memory from fake file systems of the three kinds there are."""

import pytest

from kgexp.cgroups import free_memory


@pytest.fixture
def machine(tmp_path):
    def write(**files):
        for name, text in {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 1000 kB\n", **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return min(free_memory(tmp_path).values())

    return write


def group(folder, limit, used, cached, version=2):
    names = (
        ("max", "current", "inactive_file")
        if version == 2
        else ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
    )
    return {
        f"{folder}/memory.{names[0]}": f"{limit}\n",
        f"{folder}/memory.{names[1]}": f"{used}\n",
        f"{folder}/memory.stat": f"anon 5\n{names[2]} {cached}\n",
    }


def test_without_groups_it_is_what_the_machine_has(machine):
    assert machine() == 1000 * 1024


def test_nothing_known_is_nothing(tmp_path):
    assert free_memory(tmp_path) == {}


def test_the_processs_own_group_counts_and_those_around_it(machine):
    membership = {"proc/self/cgroup": "0::/slurm/job_7\n"}
    own = group("sys/fs/cgroup/slurm/job_7", "max", 10, 0)
    assert machine(**membership, **own) == 1000 * 1024
    around = group("sys/fs/cgroup/slurm", 600_000, 300_000, 100_000)  # cached files can go
    assert machine(**membership, **own, **around) == 400_000
    tighter = group("sys/fs/cgroup/slurm/job_7", 50_000, 30_000, 0)
    assert machine(**membership, **tighter, **around) == 20_000


def test_the_first_version(machine):
    membership = {"proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/docker/abc\n"}
    top = group("sys/fs/cgroup/memory", 70_000, 20_000, 5_000, version=1)  # a container sees its group at the top
    assert machine(**membership, **top) == 55_000
