"""Process groups of a job's ranks, apart from torch's default one."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def gloo_group(store: Any, name: str, rank: int, ranks: int, timeout: float, one_machine: bool) -> Any:
    """A gloo group, for tensors on the CPU.

    Args:
        store: of the job.
        name: of the group, under which its keys go.
        rank, ranks: this process's number, and how many there are.
        timeout: seconds after which a collective fails.
        one_machine: whether loopback reaches every rank; then no host name is looked up.
    """
    prefixed = dist.PrefixStore(name, store)
    if not one_machine:  # takes the interface that GLOO_SOCKET_IFNAME names
        return dist.ProcessGroupGloo(prefixed, rank, ranks, timedelta(seconds=timeout))
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=timeout)
    return dist.ProcessGroupGloo(prefixed, rank, ranks, options)


def nccl_group(store: Any, name: str, rank: int, ranks: int, timeout: float, device: torch.device) -> Any:
    """An NCCL group, for tensors on `device`, which no other rank uses; arguments as of `gloo_group`."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    group = dist.ProcessGroupNCCL(dist.PrefixStore(name, store), rank, ranks, options)
    group.eager_connect_single_device(device)
    return group
