"""The trainers of a job as one of them reaches the others: each serves the slices that it has, the first the keeper of
shared rows too."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch
from torch import Tensor

from kgexp.errors import RankError
from kgexp.sharding.handover import HandoverBacking, Place, Trainers, Withdrawn
from kgexp.sharding.hosts import reachable_host
from kgexp.sharding.messages import Message
from kgexp.sharding.peer import Peer
from kgexp.sharding.rowfiles import RowFile, Rows
from kgexp.sharding.service import PATIENCE, TensorService
from kgexp.sharding.shared_rows import Keeper
from kgexp.world import World


class ServedTrainers(Trainers):
    """Trainers that ask each other over HTTP.

    Args:
        world: the ranks of the job, all of which make one of these at the same time.
        timeout: seconds of silence after which a trainer that is waited for is given up.
        wire_dtype: to which rows are rounded on their way; None sends them as they are.
    """

    def __init__(self, world: World, timeout: float, wire_dtype: torch.dtype | None = None) -> None:
        self.rank, self.ranks, self.common = world.rank, world.size, True
        self._world, self._timeout, self._wire = world, timeout, wire_dtype
        self._backing: HandoverBacking | None = None
        self._keeper: Keeper | None = None
        self._halted = threading.Event()
        secret = world.broadcast("the secret of the trainers", secrets.token_urlsafe(32))
        answers = {"/rows": self._rows, "/taken": self._taken, "/shared": self._shared}
        self.service = TensorService(answers, reachable_host(world), secret)
        addresses = world.gather("the addresses of the trainers", self.service.address)
        self._peers = [
            Peer(address, secret, max(timeout, 4 * PATIENCE), f"rank {rank}") for rank, address in enumerate(addresses)
        ]

    def serve(self, backing: HandoverBacking) -> None:
        """From now on others can have the slices of this table."""
        self._backing = backing

    def take(self, k: int, place: Place, into: Rows, keep: bool = False) -> tuple[int, RowFile | None]:
        """See `Trainers.take`."""
        peer, values = self._peers[place.rank], {"slice": k, "token": place.token}
        on_cpu = {
            name: rows if rows.device.type == "cpu" else torch.empty_like(rows, device="cpu")
            for name, rows in into.items()
        }
        reply = peer.ask("/rows", values, into=on_cpu, wire=self._wire, check=lambda: self._check(place.rank))
        file = reply.values.get("file")
        if file is None:
            for name, rows in into.items():
                if rows is not on_cpu[name]:
                    rows.copy_(on_cpu[name])
        if not keep:
            peer.ask("/taken", values)
        return sum(rows.nbytes for rows in into.values()), None if file is None else RowFile(**file)

    @contextmanager
    def halted(self) -> Iterator[None]:
        """See `Trainers.halted`."""
        self._halted.set()
        try:
            yield
        finally:
            self._halted.clear()

    def keep(self, value: Tensor) -> None:
        """Rank 0: keeps the value of shared rows, float[x], for all trainers, from now on."""
        self._keeper = Keeper(value)

    def push(self, change: Tensor) -> Tensor:
        """Adds changes float[x] to what rank 0 keeps; returns its value."""
        if self.rank == 0:
            assert self._keeper is not None
            return self._keeper.add(change)
        answer = self._peers[0].ask("/shared", tensors={"rows": change})
        return answer.tensors["rows"]

    @property
    def sent_bytes(self) -> int:
        """Bytes that went out so far, asked for and asking."""
        return self.service.sent_bytes + sum(peer.sent_bytes for peer in self._peers)

    def close(self) -> None:
        """Ends the service."""
        self.service.close()
        for peer in self._peers:
            peer.close()

    def _check(self, rank: int) -> None:
        """Between two tries. Raises where there is no sense in more."""
        if self._halted.is_set():
            raise Withdrawn
        if failed := self._world.failure():
            raise RankError(failed)
        if self._world.silence(rank) > self._timeout:
            raise RankError(
                f"rank {self.rank} waited for rows of rank {rank} in vain: {self._world.whereabouts()}. Look into the "
                "log of what ran there; continue the run with resume=auto."
            )

    def _rows(self, message: Message) -> Message | None:
        if self._backing is None:
            return None
        offered = self._backing.offer(message.values["slice"], message.values["token"], PATIENCE)
        if offered is None:
            return None
        return Message({"file": asdict(offered)}) if isinstance(offered, RowFile) else Message(tensors=offered)

    def _taken(self, message: Message) -> Message:
        assert self._backing is not None
        self._backing.give_up(message.values["slice"], message.values["token"])
        return Message()

    def _shared(self, message: Message) -> Message | None:
        if self._keeper is None:
            return None
        return Message(tensors={"rows": self._keeper.add(message.tensors["rows"])})
