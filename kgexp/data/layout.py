"""What the columns of a file hold, and what makes a line unfit."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from kgexp.data.blocks import Block
from kgexp.errors import ConfigError, DataError

NAMES = ("head", "relation", "tail")
_ROLES = (*NAMES, "weight", "ignore")


@dataclass(frozen=True)
class Layout:
    """The columns of the files, in their order, and whether a header line comes first.

    Attributes:
        columns: `head`, `relation` and `tail` once each, `weight` at most once, `ignore` any number of times.
        header: the first line holds titles instead of a triple.
    """

    columns: tuple[str, ...]
    header: bool

    @classmethod
    def of(cls, columns: Sequence[str], header: bool) -> "Layout":
        """The layout that `dataset.columns` and `dataset.header` describe.

        Raises:
            ConfigError: a role is unknown, missing or given twice.
        """
        counts = Counter(columns)
        unknown = [role for role in counts if role not in _ROLES]
        if unknown or counts["weight"] > 1 or any(counts[name] != 1 for name in NAMES):
            raise ConfigError(
                f"dataset.columns is [{', '.join(map(str, columns))}]: it has to name head, relation, tail "
                "once each, weight at most once, and ignore for every other column."
            )
        return cls(tuple(columns), header)

    @property
    def weighted(self) -> bool:
        """Whether a column holds weights."""
        return "weight" in self.columns


def fault(path: Path, block: Block, layout: Layout, header: bool = False) -> DataError | None:
    """The error that names the first unfit line of a block, or None if every line is fit.

    Args:
        path: the file, for the message.
        block: the lines.
        layout: what each line has to hold.
        header: the block is a header line, of which only the number of columns matters.
    """
    for number, raw in enumerate(block.text.removesuffix(b"\n").split(b"\n"), block.line):
        problem = text_fault(raw) or _fields_fault(raw.decode().removesuffix("\r").split("\t"), layout, header)
        if problem:
            return DataError(f"{path}, line {number}: {problem}.")
    return None


def text_fault(raw: bytes) -> str | None:
    """What makes the bytes of a line no text, or None."""
    if b"\0" in raw:
        return "the line holds a NUL byte, so the file is no UTF-8 text; save it as UTF-8"
    if b"\r" in raw.removesuffix(b"\r"):
        return "the line holds a carriage return; end every line with LF or with CRLF"
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} (0x{raw[error.start]:02x}) is not UTF-8; convert the file to UTF-8"
    return None


def _fields_fault(fields: list[str], layout: Layout, header: bool) -> str | None:
    if fields == [""]:
        return "the line is blank; remove it"
    if len(fields) != len(layout.columns):
        columns = ", ".join(layout.columns)
        return (
            f"expected {len(layout.columns)} columns separated by tabs ({columns}), found {len(fields)}; "
            "mend the line, or list the file's columns in dataset.columns"
        )
    if header:
        return None
    for role, field in zip(layout.columns, fields, strict=True):
        if role in NAMES and not field:
            return f"the {role} is empty; give it a name or remove the line"
        if role == "weight" and not is_weight(field):
            return f"the weight '{field}' is no finite number of at least 0; mend it, or ignore the column"
    return None


def is_weight(text: str) -> bool:
    """Whether a text is a finite number of at least 0."""
    try:
        weight = pa.array([text]).cast(pa.float64())[0].as_py()
    except pa.ArrowInvalid:
        return False
    return bool(0 <= weight < float("inf"))
