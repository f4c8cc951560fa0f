"""Ranks that somebody else started, such as torchrun or Slurm: which one this process is, and where the others are.

It is all in the environment; torch is imported only to open the store.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from kgexp.errors import ConfigError, RankError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: Ports that neither services nor the system's own choices use: the first, and how many.
_PORTS = (12000, 16000)


@dataclass(frozen=True)
class Launch:
    """What a launcher told this process.

    Attributes:
        rank, size, local_rank, local_size: as in `kgexp.world.World`.
        host, port: of the store.
        attempt: how often the launcher has started the ranks again.
        keeps_store: the launcher keeps the store; otherwise rank 0 does.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int
    attempt: int = 0
    keeps_store: bool = False

    def store(self, timeout: float) -> "Store":
        """The store of all attempts of the job; waits for it.

        Args:
            timeout: seconds.

        Raises:
            RankError: it cannot be reached, or not be kept.
        """
        from torch._C._distributed_c10d import TCPStore

        keeper = self.rank == 0 and not self.keeps_store
        try:
            return TCPStore(
                self.host,
                self.port,
                is_master=keeper,
                timeout=timedelta(seconds=timeout),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except RuntimeError as error:
            what = "cannot keep the ranks' store at" if keeper else "did not reach the ranks' store at"
            text = " ".join(str(error).split())[:200]
            raise RankError(
                f"rank {self.rank} {what} {self.host}:{self.port} ({text}): set MASTER_ADDR to the host of rank 0, "
                "MASTER_PORT to a free port of it, or look into the log of rank 0."
            ) from error


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """What the launcher said: torchrun, a local job of submitit, or a step of Slurm; None where nobody launched ranks.

    A batch script of Slurm and a step of one task are no launched ranks: these start their own.

    Raises:
        ConfigError: variables are missing or not what they should be; names them.
    """
    for reader in (_torchrun, _submitit, _slurm):
        try:
            launch = reader(environment)
        except (KeyError, ValueError, IndexError) as error:
            raise ConfigError(
                f"the environment of a launched rank is incomplete or wrong ({type(error).__name__}: {error}): start "
                "all ranks by torchrun, srun or submitit, or unset RANK, WORLD_SIZE and SLURM_STEP_NUM_TASKS."
            ) from error
        if launch is not None:
            return launch
    return None


def _torchrun(environment: Mapping[str, str]) -> Launch | None:
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    rank, size, local_rank, local_size, host, port = (environment[name] for name in _TORCHRUN)
    return Launch(
        int(rank),
        int(size),
        int(local_rank),
        int(local_size),
        host,
        int(port),
        int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
        environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _submitit(environment: Mapping[str, str]) -> Launch | None:
    """Tasks of submitit's local executor, on one machine; with its Slurm executor, Slurm tells."""
    size = int(environment.get("SUBMITIT_LOCAL_NTASKS", 1))
    if environment.get("SUBMITIT_EXECUTOR") != "local" or size == 1:
        return None
    rank, local_rank = int(environment["SUBMITIT_LOCAL_GLOBALID"]), int(environment["SUBMITIT_LOCAL_LOCALID"])
    return Launch(rank, size, local_rank, size, "127.0.0.1", _port(environment["SUBMITIT_LOCAL_JOB_ID"], "0"))


def _slurm(environment: Mapping[str, str]) -> Launch | None:
    size = int(environment.get("SLURM_STEP_NUM_TASKS", 1))
    if size == 1 or "SLURM_PROCID" not in environment:
        return None
    tasks = expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
    port = _port(environment["SLURM_JOB_ID"], environment["SLURM_STEP_ID"])
    return Launch(
        int(environment["SLURM_PROCID"]),
        size,
        int(environment["SLURM_LOCALID"]),
        tasks[int(environment.get("SLURM_NODEID", 0))],
        environment.get("MASTER_ADDR") or first_host(environment["SLURM_STEP_NODELIST"]),
        int(environment.get("MASTER_PORT") or port),
    )


def first_host(nodes: str) -> str:
    """The first of Slurm's list of hosts: `gpu[03-05,9],cpu1` to `gpu03`."""
    first = ""
    for text, choices in re.findall(r"([^\[\],]+)|\[([^\]]*)\]|,", nodes):
        if not text and not choices:
            break  # a comma outside brackets ends the first name
        first += text or re.split(r"[-,]", choices)[0]
    if not first:
        raise ValueError(f"no host in {nodes!r}")
    return first


def expand_counts(counts: str) -> list[int]:
    """Slurm's numbers of tasks by node: `2(x3),1` to `[2, 2, 2, 1]`."""
    expanded = []
    for part in counts.split(","):
        count, _, times = part.partition("(x")
        expanded += [int(count)] * int(times.rstrip(")") or 1)
    return expanded


def _port(job: str, step: str) -> int:
    """One that the ranks of a step agree on, and steps at the same time most likely do not."""
    first, ports = _PORTS
    return first + (int(job.partition("_")[0]) * 31 + int(step)) % ports
