"""Ranks that talk through a torch store: who waits for whom, who is alive, who failed."""

import json
import math
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch._C._distributed_c10d import PrefixStore, Store

from kgexp.errors import GivenUpError, RankError
from kgexp.store_link import give_up_after
from kgexp.world import World

#: The longest pause between two looks at what others wrote, in seconds.
_LOOK = 0.05
#: Seconds that the word of a rank that failed may take.
_WORD = 1.0


@dataclass
class _Heard:
    """What a rank was last heard saying; when, is told by the one who listens, as machines' clocks may differ.

    Attributes:
        word: the rank's own; while the count of heartbeats in it does not change, the rank says nothing.
        at: when it was seen to change, by `time.monotonic`.
        beats: heartbeats of the one who listens until then. They measure silence: they stand still together
            with those of the others when the whole job is suspended.
    """

    word: dict[str, Any]
    at: float
    beats: int


#: Seconds between two heartbeats, and of them in a lease, at most.
_BEAT, _BEATS = 5.0, 8


def heartbeat(sharding: Mapping[str, Any]) -> float:
    """Seconds between two heartbeats under a `sharding` of the configuration, at most."""
    return min(_BEAT, float(sharding.get("lease", math.inf)) / _BEATS)


class StoreWorld(World):
    """A `World` over any torch store; a context, in which a thread tells the others that this rank is alive.

    A rank that is slow is waited for as long as its heart beats, however long that takes; one whose heartbeat does
    not come for `timeout` seconds is given up; one whose process was on this machine and is no more, at once.

    Args:
        store: the ranks' own: none may have used its keys before. Process groups prefix their keys.
        timeout: seconds of silence after which a rank counts as dead.
        start_timeout: the same for a rank that was never heard, whose libraries may come over a slow network.
        beat: seconds between two heartbeats, at most; silence is measured in these.

    Attributes:
        store, timeout: as given.
        one_machine: all ranks are on this machine.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        local_rank: int,
        local_size: int,
        timeout: float = 300.0,
        start_timeout: float = 300.0,
        beat: float = _BEAT,
    ) -> None:
        self.store, self.timeout = store, timeout
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        self.one_machine = local_size == size
        self._start_timeout = max(timeout, start_timeout)
        self._calls = 0
        self._written: list[str] = []  # keys of calls that others may still read
        self._place: tuple[str, int | None, float] = ("start", None, time.monotonic())
        self._pause = min(beat, timeout / 10)
        self._beats = self._counted = 0
        self._heard: dict[int, _Heard] = {}
        self._began = time.monotonic()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        # A store of its own: on a shared connection the heart would stop while somebody waits for a key.
        self._began = time.monotonic()
        store = self.store.clone()  # type: ignore[attr-defined]  # torch's stubs do not know it
        for connection in (self.store, store):
            give_up_after(connection, self.timeout)
        self._thread = threading.Thread(target=self._live, args=(store,), name="heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def beat(self, stage: str, step: int | None = None) -> None:
        """See `World.beat`; costs nothing: the thread writes."""
        if self._place[:2] != (stage, step):
            self._place = (stage, step, time.monotonic())

    def barrier(self, name: str) -> None:
        """See `World.barrier`."""
        self.gather(name, None)

    def broadcast(self, name: str, value: Any = None) -> Any:
        """See `World.broadcast`. Rank 0 does not wait for the others."""
        self._calls += 1
        if self.rank == 0:
            self._say(name, value)
            return value
        return self._listen(name, [0])[0]

    def gather(self, name: str, value: Any) -> list[Any]:
        """See `World.gather`."""
        self._calls += 1
        read_by_all = self._written[:]
        self._say(name, value)
        values = self._listen(name, range(self.size))
        # Whoever has come here has been through all calls before.
        with suppress(RuntimeError):  # the next call says so, if its keeper has ended
            for key in read_by_all:
                self.store.delete_key(key)
        self._written = self._written[len(read_by_all) :]
        return values

    def fail(self, sentence: str) -> None:
        """Leaves word that this rank failed: those who wait for anybody raise at once. The first word counts."""
        with suppress(RuntimeError):  # the store may be what failed
            self.store.compare_set("failed", "", json.dumps([self.rank, sentence]))

    def count(self, amount: int) -> None:
        """See `World.count`."""
        self._counted += amount

    def counted(self) -> int:
        """See `World.counted`."""
        heard = list(self._heard.values())
        return self._counted + sum(int(other.word["counted"]) for other in heard)

    def whereabouts(self) -> str:
        """See `World.whereabouts`."""
        with suppress(RuntimeError):  # what was heard before has to do
            for rank in range(self.size):
                self._hear(self.store, rank)
        # Whoever failed lets go of the others first thing; its word may come a moment later.
        deadline = time.monotonic() + _WORD
        while (failed := self.failure()) is None and time.monotonic() < deadline:
            time.sleep(_LOOK)
        words = [self._about(rank) for rank in range(self.size) if rank != self.rank]
        return "; ".join(([failed] if failed else []) + words)

    def roll_call(self, name: str, patience: float) -> list[int]:
        """See `World.roll_call`."""
        missing = list(range(1, self.size)) if self.rank == 0 else [0]
        keys = [f"roll/{name}/{rank}" for rank in range(self.size)]
        try:
            if self.rank:
                self.store.set(keys[self.rank], "")
            while missing:
                missing = [rank for rank in missing if not self.store.check([keys[rank]])]
                if missing and (failed := self.failure()):
                    raise RankError(failed)
                if self.rank:
                    self._give_up(name, missing, [rank for rank in missing if self._silent(rank)])
                elif all(self.silence(rank) > patience for rank in missing):
                    break
                time.sleep(_LOOK if missing else 0)
            if self.rank == 0:
                self.store.set(keys[0], json.dumps(missing))
            gone: list[int] = json.loads(self.store.get(keys[0]))
        except RuntimeError as error:
            raise self._lost(error) from error
        if self.rank in gone:
            raise GivenUpError(
                f"rank {self.rank} was silent for more than {patience:g} s, and the others went on without it: start "
                "again with resume=auto for all to take part, and raise sharding.lease if it was not stopped."
            )
        return gone

    def without(self, ranks: Sequence[int]) -> "StoreWorld":
        """See `World.without`."""
        left = [rank for rank in range(self.size) if rank not in ranks]
        hosts = {rank: other.word["host"] for rank, other in self._heard.items()} | {self.rank: socket.gethostname()}
        here = [rank for rank in left if hosts.get(rank) == hosts[self.rank]]
        store = PrefixStore(f"without/{'-'.join(map(str, ranks))}", self.store)
        place = left.index(self.rank), len(left), here.index(self.rank), len(here)
        return StoreWorld(store, *place, self.timeout, self._start_timeout, self._pause)

    def silence(self, rank: int) -> float:
        """See `World.silence`; costs no request: the thread hears."""
        if rank == self.rank:
            return 0.0
        heard = self._heard.get(rank)
        if heard and _ended(heard.word):
            return math.inf
        return (self._beats - (heard.beats if heard else 0)) * self._pause

    def _say(self, name: str, value: Any) -> None:
        key = f"{self._calls}/{self.rank}"
        try:
            self.store.set(key, json.dumps([name, value]))
        except RuntimeError as error:
            raise self._lost(error) from error
        self._written.append(key)

    def _listen(self, name: str, ranks: Sequence[int]) -> list[Any]:
        """What the ranks said in the present call, once all have."""
        keys, pause = [f"{self._calls}/{rank}" for rank in ranks], 0.001
        silent: list[int] = []
        try:
            while not self.store.check(keys):
                if failed := self.failure():
                    raise RankError(failed)
                missing = [rank for rank, key in zip(ranks, keys, strict=True) if not self.store.check([key])]
                # Of the look before: what a rank says in its last moment is there by now.
                self._give_up(name, missing, silent)
                silent = [rank for rank in missing if self._silent(rank)]
                time.sleep(pause)
                pause = min(2 * pause, _LOOK)
            said = [json.loads(self.store.get(key)) for key in keys]
        except RuntimeError as error:
            raise self._lost(error) from error
        for rank, (there, _) in zip(ranks, said, strict=True):
            if there != name:
                raise RankError(f"rank {rank} has come to {there!r} where rank {self.rank} is at {name!r}.")
        return [value for _, value in said]

    def _give_up(self, name: str, missing: Sequence[int], silent: Sequence[int]) -> None:
        """Raises where one of the ranks that are waited for will not come."""
        if set(missing) & set(silent):
            words = "; ".join(self._about(rank) for rank in missing)
            raise RankError(
                f"rank {self.rank} waited at {name!r} for {_ranks(missing)} in vain: {words}. Look into the log of "
                "what ran there; continue the run with resume=auto."
            )

    def failure(self) -> str | None:
        """See `World.failure`."""
        try:
            if not self.store.check(["failed"]):
                return None
            rank, sentence = json.loads(self.store.get("failed"))
        except RuntimeError:
            return None
        return f"rank {rank} failed: {sentence}"

    def _lost(self, error: RuntimeError) -> RankError:
        text = " ".join(str(error).split())[:200]
        return RankError(
            f"rank {self.rank} lost the ranks' common store ({text}): rank 0 or its launcher, which keep it, ended, or "
            "their machine cannot be reached. See the log there; continue the run with resume=auto."
        )

    def _silent(self, rank: int) -> bool:
        """Whether another rank has ended, or was not heard for longer than it may be."""
        if rank not in self._heard:
            self._hear(self.store, rank)  # without waiting for the thread's next turn
        return self.silence(rank) > (self.timeout if rank in self._heard else self._start_timeout)

    def _about(self, rank: int) -> str:
        """What a rank was last heard doing."""
        heard = self._heard.get(rank)
        silence = time.monotonic() - (heard.at if heard else self._began)
        if heard is None:
            return f"rank {rank}: never heard in {silence:.0f} s"
        word = heard.word
        step = "" if word["step"] is None else f", step {word['step']}"
        return (
            f"rank {rank} (process {word['pid']} on {word['host']}): {word['stage']}{step}, heard {silence:.0f} s ago, "
            f"there for {word['since'] + silence:.0f} s{', its process has ended' if _ended(word) else ''}"
        )

    def _live(self, store: Store) -> None:
        """The thread: says where this rank is, hears where the others are."""
        name = {"pid": os.getpid(), "host": socket.gethostname(), "pids": _pids()}
        # The store ends with the process that keeps it; those who wait find out for themselves.
        with suppress(RuntimeError):
            while True:
                stage, step, since = self._place
                self._beats += 1
                word = {
                    "beats": self._beats,
                    "stage": stage,
                    "step": step,
                    "since": round(time.monotonic() - since, 1),
                    "counted": self._counted,
                    **name,
                }
                store.set(f"heart/{self.rank}", json.dumps(word))
                for rank in range(self.size):
                    if rank != self.rank:
                        self._hear(store, rank)
                if self._ending.wait(self._pause):
                    return

    def _hear(self, store: Store, rank: int) -> None:
        key = f"heart/{rank}"
        if not store.check([key]):
            return
        word = json.loads(store.get(key))
        heard = self._heard.get(rank)
        if heard is None or heard.word["beats"] != word["beats"]:
            self._heard[rank] = _Heard(word, time.monotonic(), self._beats)


def _pids() -> str | None:
    """A name of this machine, and of the container on it, within which process ids mean something; None without one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _ended(word: dict[str, Any]) -> bool:
    """Whether a heartbeat came from a process that can be seen from here to be no more."""
    if word["pids"] is None or word["pids"] != _pids():
        return False
    try:
        os.kill(word["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
