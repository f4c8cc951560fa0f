"""Which choice of `sharding` fits the memory that there is."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kgexp.errors import ConfigError
from kgexp.tools.composing import with_choices
from kgexp.tools.needs import Needs, needs_of
from kgexp.train.assembly import Parts

#: Numbers of ranks and of partitions that are tried whatever there is.
_RANKS, _PARTITIONS = (2, 4, 8), (4, 8, 16, 32, 64)

#: Numbers of devices that are looked at where those that there are do not suffice.
_MORE_DEVICES = [2**i for i in range(1, 11)]


@dataclass(frozen=True)
class Room:
    """Where ranks have their memory.

    Attributes:
        memory: bytes of a device that ranks may take.
        devices: how many there are; ranks are shared out among them.
    """

    memory: int
    devices: int

    def of_rank(self, ranks: int) -> int:
        """Bytes for each of so many ranks."""
        return self.memory // -(-ranks // self.devices)


@dataclass(frozen=True)
class Choice:
    """A choice of sharding, as arguments of a run.

    Attributes:
        arguments: such as `("sharding=rowwise", "sharding.ranks=4")`; other arguments about these groups go.
        ranks: processes.
        needs: what it takes; None where it is refused.
        refused: the sentence of the rule that it breaks.
    """

    arguments: tuple[str, ...]
    ranks: int
    needs: Needs | None
    refused: str | None = None

    @property
    def partitioned(self) -> bool:
        """Whether it has partitions."""
        return self.arguments[0] == "sharding=partitioned"

    def fits(self, room: Room) -> bool:
        """Whether each of its ranks has the memory that it needs."""
        return self.needs is not None and self.needs.memory.total <= room.of_rank(self.ranks)

    def as_dict(self, room: Room) -> dict[str, Any]:
        """As JSON values."""
        needs = {} if self.needs is None else self.needs.as_dict()
        about = {"arguments": list(self.arguments), "refused": self.refused, "fits": self.fits(room)}
        return about | {"ranks": self.ranks} | needs


@dataclass(frozen=True)
class Chooser:
    """Looks at choices of sharding.

    Attributes:
        config: of the run.
        parts: of the run, in one process.
        snapshots: that the run leaves.
    """

    config: dict[str, Any]
    parts: Parts
    snapshots: int

    def choices(self, devices: int) -> Iterator[Choice]:
        """All in one process, rows over ranks, and partitions of one trainer, whose other rows are in files."""
        yield self.choice(("sharding=none", *self._memory), 1)
        for ranks in sorted({*_RANKS, *([devices] if devices > 1 else [])}):
            yield self.rowwise(ranks)
        on_cpu, remote = self.parts.device.type == "cpu", "url" in self.parts.config["storage"]
        storage = () if remote else ("storage=local",) if on_cpu else self._memory
        one = ("sharding.ranks=1",) if devices > 1 else ()
        for partitions in _PARTITIONS:
            yield self.choice(("sharding=partitioned", f"sharding.partitions={partitions}", *one, *storage), 1)

    def rowwise(self, ranks: int) -> Choice:
        """Rows over so many ranks."""
        return self.choice(("sharding=rowwise", f"sharding.ranks={ranks}", *self._memory), ranks)

    def choice(self, arguments: tuple[str, ...], ranks: int) -> Choice:
        """What a choice takes, or why it is refused."""
        keys = dict(argument.split("=") for argument in arguments)
        values = {key: int(value) for key, value in keys.items() if "." in key}
        try:
            config = with_choices(self.config, {key: keys[key] for key in keys.keys() - values.keys()}, values)
            return Choice(arguments, ranks, needs_of(self.parts.supposing(config, ranks), self.snapshots))
        except ConfigError as error:
            return Choice(arguments, ranks, None, str(error))

    def enough_devices(self, room: Room) -> int | None:
        """The number of such devices over which the rows would fit; None where no number of them suffices."""
        more = (ranks for ranks in _MORE_DEVICES if ranks > room.devices)
        return next((ranks for ranks in more if self.rowwise(ranks).fits(Room(room.memory, ranks))), None)

    @property
    def _memory(self) -> tuple[str, ...]:
        """The argument that has rows in memory, where the run's would not."""
        chosen = self.parts.config["storage"]["_target_"] == "kgexp.storage.memory.MemoryStorage"
        return () if chosen else ("storage=memory",)


def recommended(choices: Iterable[Choice], room: Room) -> Choice | None:
    """The simplest that fits: one process, then rows over all devices, then the fewest partitions."""

    def simple(choice: Choice) -> bool:
        return choice.ranks == 1 or choice.ranks == room.devices

    return next((choice for choice in choices if simple(choice) and choice.fits(room)), None)
