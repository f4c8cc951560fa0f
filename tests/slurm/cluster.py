#!/usr/bin/env python3
"""A real Slurm of a few virtual nodes on this machine: on loopback alone, and all its files below one folder.

python tests/slurm/cluster.py install            # Debian's packages, where some are missing and root asks
python tests/slurm/cluster.py up FOLDER [NODES]  # a cluster in a new folder: says what to export, ends at Ctrl-C

The daemons are children of this process and end with it, whatever ends it. Jobs end before them, unless it is killed.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

#: A program of each package of Debian that is needed.
PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "setpriv": "util-linux",
}
#: Clusters at the same time each have a block of ports, below those that the system hands out.
_PORTS, _BLOCK, _BLOCKS = 28000, 100, 16
_HOSTS = Path("/etc/hosts")
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ctld}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
# A job that was put back waits this long until it starts again: 5 s is the least, 120 s the rule.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SrunPortRange={srun}-{last}
# Ports of ranks come from the job's number: jobs of clusters at the same time have others.
FirstJobId={first_job}
# No control groups; no accounting, so no sacct either.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerParameters=sched_min_interval=100000,sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# Partition `main` takes nodes from `preempt`, whose jobs hear of it by the signal that they asked for.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
# What has ended can be asked for as long as a test may want it.
MinJobAge=3600
ReturnToService=2
# A node claims more than the machine has, so that scripts can be tried as they are.
SlurmdParameters=config_overrides
NodeName=node[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{slurmd}-{last_slurmd}] CPUs=8 RealMemory=32000
PartitionName=main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=preempt Nodes=ALL PriorityTier=1 GraceTime=20
"""


def missing() -> str | None:
    """Why there can be no cluster here; None where there can."""
    if os.geteuid() != 0:
        return "a Slurm of one's own takes root"
    if lacking := sorted({package for program, package in PACKAGES.items() if _which(program) is None}):
        return f"{', '.join(lacking)} not installed: python tests/slurm/cluster.py install"
    if not os.access(_HOSTS, os.W_OK):
        return f"{_HOSTS}, which has to know the nodes' names, cannot be written"
    return None


def install() -> None:
    """Debian's packages that are missing; their own services are not started.

    Raises:
        CalledProcessError: they could not be had.
    """
    packages = sorted({package for program, package in PACKAGES.items() if _which(program) is None})
    if not packages:
        return
    # Debian's packages start what they install unless such a script forbids it.
    policy = Path("/usr/sbin/policy-rc.d")
    own = not policy.exists()
    if own:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
        get = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
        get += ["-o", "DPkg::Lock::Timeout=60", *packages]
        subprocess.run(get, env=quiet, stdout=subprocess.DEVNULL, check=True)
    finally:
        if own:
            policy.unlink()


class Cluster:
    """The daemons of `nodes` virtual nodes, node1, node2, …, while the context lasts.

    Args:
        folder: an empty one; logs stay there.

    Attributes:
        env: variables that lead Slurm's commands here, in addition to those of this process.
    """

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder, self.nodes = folder.resolve(), nodes
        # Ranks on several nodes talk by the one interface that there is.
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf"), "GLOO_SOCKET_IFNAME": "lo"}

    def __enter__(self) -> Self:
        """Starts it.

        Raises:
            RuntimeError: it did not come up in time; says what the logs say.
        """
        with ExitStack() as stack:
            stack.callback(_write_hosts, 0)
            block = _lock_block(stack)
            self._write_conf(block)
            _write_hosts(self.nodes)
            folder = self.folder
            self._start(
                *(stack, "munged", "--foreground", "--force", "--num-threads=2", f"--key-file={folder}/munge.key"),
                *(f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid"),
                *(f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"),
            )
            self._start(stack, "slurmctld", "-D")
            for node in range(1, self.nodes + 1):
                self._start(stack, "slurmd", "-D", "-N", f"node{node}")
            stack.callback(self._clear)
            self._wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _write_conf(self, block: int) -> None:
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)
        (self.folder / "state").mkdir()
        for node in range(1, self.nodes + 1):
            (self.folder / f"node{node}").mkdir()
        port = _PORTS + block * _BLOCK
        text = _CONF.format(
            host=socket.gethostname().partition(".")[0],
            folder=self.folder,
            nodes=self.nodes,
            ctld=port + 1,
            slurmd=port + 2,
            last_slurmd=port + 1 + self.nodes,
            srun=port + 2 + self.nodes,
            last=port + _BLOCK - 1,
            first_job=1000 * block + 1,
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")

    def _start(self, stack: ExitStack, program: str, *arguments: str) -> None:
        """A daemon in the foreground, out of reach of Ctrl-C; the system ends it when this process is gone."""
        path = _which(program)
        assert path is not None
        with open(self.folder / "daemons.log", "ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", path, *arguments],
                env=os.environ | self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        stack.callback(_stop, process)
        if program == "munged":  # the others need it at once
            deadline = time.monotonic() + 10
            while not (self.folder / "munge.socket").exists() and time.monotonic() < deadline:
                time.sleep(0.01)

    def _wait(self, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while len(set(self._call("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N").split())) < self.nodes:
            if time.monotonic() > deadline:
                logs = (path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))
                raise RuntimeError(f"Slurm's nodes are not idle after {seconds} s:\n" + "\n".join(logs))
            time.sleep(0.05)

    def _clear(self, seconds: float = 20) -> None:
        """Ends all jobs, while there are daemons that know of their processes."""
        deadline = time.monotonic() + seconds
        while (jobs := self._call("squeue", "-h", "-o", "%A").split()) and time.monotonic() < deadline:
            self._call("scancel", *jobs)
            self._call("scancel", "--full", "--signal=KILL", *jobs)
            time.sleep(0.2)

    def _call(self, *command: str) -> str:
        with suppress(subprocess.TimeoutExpired):
            found = subprocess.run(command, env=os.environ | self.env, capture_output=True, text=True, timeout=10)
            return found.stdout
        return ""


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _lock_block(stack: ExitStack) -> int:
    """The number of a block of ports that no other cluster has, for as long as the stack lives."""
    for block in range(_BLOCKS):
        lock = stack.enter_context(socket.socket())
        with suppress(OSError):
            lock.bind(("127.0.0.1", _PORTS + block * _BLOCK))
            return block
    raise RuntimeError(f"{_BLOCKS} clusters are there already")


def _write_hosts(nodes: int) -> None:
    """Has the names of nodes lead to this machine; drops the lines of this process, and of those that are gone."""
    mark = "# cluster.py, process"
    with _HOSTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = file.read().splitlines(keepends=True)
        kept = []
        for line in lines:
            owner = line.partition(mark)[2]
            if not owner or (int(owner) != os.getpid() and Path(f"/proc/{int(owner)}").exists()):
                kept.append(line)
        if nodes:
            # The last is how torch's stores see their peers: unknown here, each would be asked of a name server.
            names = [*(f"127.0.0.1 node{node}" for node in range(1, nodes + 1)), "::ffff:127.0.0.1 localhost"]
            kept += [f"{name} {mark} {os.getpid()}\n" for name in names]
        # Over the old text, as others read the file meanwhile without asking; in one write.
        file.seek(0)
        file.write("".join(kept))
        file.truncate()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(command: str = "", folder: str = "", nodes: str = "2") -> None:
    """The command line."""
    for signum in (signal.SIGTERM, signal.SIGINT):  # SIGINT is ignored where a shell put this into the background
        signal.signal(signum, signal.default_int_handler)
    if command == "install":
        install()
    elif command == "up" and folder:
        Path(folder).mkdir(parents=True)
        with suppress(KeyboardInterrupt), Cluster(Path(folder), int(nodes)) as cluster:
            print(*(f"export {name}={value}" for name, value in cluster.env.items()), sep="\n", flush=True)
            signal.pause()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
