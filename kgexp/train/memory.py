"""What a run will hold in memory, known before it starts."""

from collections.abc import Mapping
from dataclasses import dataclass

from kgexp.errors import ConfigError


@dataclass(frozen=True)
class Estimate:
    """Bytes by what they are for; libraries and memory-mapped data are not counted.

    Attributes:
        parts: name to bytes, of a rank, on the device of the rows.
        state: bytes of optimizer state on another device.
        ranks: how many such ranks there are.
        disk: bytes of files that rows and checkpoints take at once, at most; 0 where only checkpoints are written.
        checkpoint: bytes of the rows of a checkpoint, of all ranks.
        files: bytes of rows, of all ranks, that are in files while they are trained.
    """

    parts: Mapping[str, int]
    state: int = 0
    ranks: int = 1
    disk: int = 0
    checkpoint: int = 0
    files: int = 0

    @property
    def total(self) -> int:
        """All of it on the device of the rows."""
        return sum(self.parts.values())

    def line(self) -> str:
        """One line for people."""
        parts = ", ".join(f"{name} {size(n)}" for name, n in self.parts.items())
        each = f" on each of {self.ranks} ranks" if self.ranks > 1 else ""
        other = f" and {size(self.state)} of optimizer state on another device" if self.state else ""
        disk = f"; disk: {size(self.disk)}" if self.disk else ""
        return f"memory: {size(self.total)}{each} ({parts}){other}, libraries and mapped data aside{disk}"

    def check(self, available: int | None, dim: int, for_state: int | None = None) -> None:
        """Refuses what cannot fit in `available` bytes (None is unknown), for rows of `dim` reals, or whose optimizer
        state cannot fit in `for_state` bytes of another device.

        Raises:
            ConfigError: says what is needed, what there is, and what would fit.
        """
        if for_state is not None and self.state > for_state:
            raise ConfigError(
                f"the optimizer state needs {size(self.state)} of memory on sharding.state_device and "
                f"{size(max(for_state, 0))} are free: train.state_dtype=bfloat16 halves most of it, "
                "optimizer=rowwise_adagrad needs the least."
            )
        if available is None or self.total <= available:
            return
        needed, free = size(self.total), size(max(available, 0))
        remedies = ", or ".join(self.remedies(available, dim))
        raise ConfigError(f"the run needs {needed} of memory and {free} are free: {remedies}.")

    def remedies(self, available: int, dim: int) -> list[str]:
        """What would fit in `available` bytes instead of rows of `dim` reals."""
        smaller = int(0.9 * dim * max(available, 0) / self.total) // 2 * 2
        remedies = ["a smaller train.batch_size" if smaller < 2 else f"model.dim={smaller} would fit"]
        if sum(n for name, n in self.parts.items() if name.endswith("table")) > self.total // 2:
            remedies.append("storage=local keeps the tables in files")
        return remedies


def size(n: int) -> str:
    """Bytes in words: `1.5 GB`."""
    value = float(n)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} GB"
