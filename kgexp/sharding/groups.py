"""Process groups of a job's ranks, apart from torch's default one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d  # torch.distributed exports a part of it

from kgexp.errors import RankError
from kgexp.world import World


@contextmanager
def connecting(world: World, close: Callable[[], None]) -> Iterator[None]:
    """Within it the ranks make groups. Raises RankError, after `close`, where that fails."""
    # Whoever has failed before says so here: while groups are connected nobody listens.
    world.barrier("the connection of the ranks")
    try:
        yield
    except RuntimeError as error:  # also of a rank that died meanwhile
        close()
        reason = " ".join(str(error).split())
        raise RankError(f"the ranks could not be connected ({reason}): {world.whereabouts()}") from error


def gloo_group(store: Any, name: str, rank: int, ranks: int, timeout: float, one_machine: bool) -> Any:
    """A gloo group, for tensors on the CPU.

    Args:
        store: of the job.
        name: of the group, under which its keys go.
        rank, ranks: this process's number, and how many there are.
        timeout: seconds after which a collective fails.
        one_machine: whether loopback reaches every rank; then no host name is looked up.
    """
    prefixed = c10d.PrefixStore(name, store)
    if not one_machine:  # takes the interface that GLOO_SOCKET_IFNAME names
        return c10d.ProcessGroupGloo(prefixed, rank, ranks, timedelta(seconds=timeout))
    options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs do not know it
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=timeout)
    return c10d.ProcessGroupGloo(prefixed, rank, ranks, options)


def nccl_group(store: Any, name: str, rank: int, ranks: int, timeout: float, device: torch.device) -> Any:
    """An NCCL group, for tensors on `device`, which no other rank uses; arguments as of `gloo_group`."""
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    group = c10d.ProcessGroupNCCL(c10d.PrefixStore(name, store), rank, ranks, options)
    group.eager_connect_single_device(device)
    return group
