"""A world of files: what the tests of processes need of one, without torch."""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kgexp.errors import RankError
from kgexp.ranks.child import Seat
from kgexp.world import World


class PlainWorld(World):
    """Ranks that leave each other files beside the store's; nobody watches anybody."""

    def __init__(self, seat: Seat) -> None:
        self.rank = self.local_rank = seat.rank
        self.size = self.local_size = seat.size
        self._folder = Path(seat.store).parent
        self._calls = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def fail(self, sentence: str) -> None:
        (self._folder / "failed").write_text(sentence)

    def beat(self, stage: str, step: int | None = None) -> None:
        pass

    def barrier(self, name: str) -> None:
        self.gather(name, None)

    def gather(self, name: str, value: Any) -> list[Any]:
        self._calls += 1
        files = [self._folder / f"{self._calls}-{rank}" for rank in range(self.size)]
        part = files[self.rank].with_suffix(".part")
        part.write_text(json.dumps(value))
        part.rename(files[self.rank])
        while not all(file.exists() for file in files):
            if (self._folder / "failed").exists():
                raise RankError("another rank failed.")
            time.sleep(0.002)
        return [json.loads(file.read_text()) for file in files]
