"""Reading a file of triples: tab-separated columns to packed names, block by block.

Blocks go through Arrow's CSV parser and a few checks of the whole block; a block that fails any of them is
scanned line by line, only to say which line is at fault.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from kgexp.data.ahead import ahead, in_order
from kgexp.data.blocks import BLOCK_BYTES, BOM, Block, blocks
from kgexp.data.layout import Layout, fault
from kgexp.data.packing import Names
from kgexp.errors import DataError
from kgexp.threads import physical_cores

_TEXT = pa.large_string()
# Relations are few and their names long: Arrow finds the distinct ones of a block.
_TYPES = {"head": _TEXT, "relation": pa.dictionary(pa.int32(), _TEXT), "tail": _TEXT, "weight": _TEXT}


@dataclass(frozen=True)
class Columns:
    """The columns of one block of a file, b values each.

    Attributes:
        heads, tails: b names.
        relations: the distinct names, in the order of first appearance.
        relation: int32[b], numbers of these.
        weights: float64[b], or None without a weight column.
    """

    heads: Names
    relations: Names
    relation: npt.NDArray[np.int32]
    tails: Names
    weights: npt.NDArray[np.float64] | None


def read(path: Path, layout: Layout, block_bytes: int = BLOCK_BYTES) -> Iterator[Columns]:
    """Reads a file block by block; the columns in all do not depend on `block_bytes`.

    A thread a core parses blocks while the caller uses those before.

    Raises:
        DataError: the file cannot be read, holds no triple, or has an unfit line (which is named).
    """
    empty = True
    text = ahead(_below_header(path, layout, block_bytes))
    for columns in in_order(partial(_columns, path, layout), text, physical_cores()):
        empty = False
        yield columns
    if empty:
        what = "nothing but a header" if layout.header else "nothing"
        raise DataError(f"{path}, line 1: expected a triple, but the file holds {what}; fill it or remove it.")


def _below_header(path: Path, layout: Layout, block_bytes: int) -> Iterator[Block]:
    for block in blocks(path, block_bytes):
        if block.line > 1 or not layout.header:
            yield block
            continue
        header, _, text = block.text.partition(b"\n")
        if problem := fault(path, Block(1, 1, header + b"\n"), layout, header=True):
            raise problem
        if text:
            yield Block(2, block.lines - 1, text)


def _columns(path: Path, layout: Layout, block: Block) -> Columns:
    columns = _parse(block, layout)
    if columns is None:
        raise fault(path, block, layout) or DataError(
            f"{path}, line {block.line} or soon after it: the text cannot be parsed as columns that "
            "tabs separate; look for unusual characters there."
        )
    return columns


def _parse(block: Block, layout: Layout) -> Columns | None:
    """The block's columns; None if anything at all is odd about it."""
    if not _is_text(block.text):
        return None
    try:
        table = _parse_columns(block.text, layout)
    except pa.ArrowInvalid:
        return None
    # The parser skips blank lines and takes a lone carriage return for a line's end.
    if table.num_rows != block.lines:
        return None
    weights = table.column("weight").to_numpy() if layout.weighted else None
    if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
        return None
    relation = table.column("relation").combine_chunks()
    heads, tails = (Names.of(table.column(role).combine_chunks()) for role in ("head", "tail"))
    relations = Names.of(relation.dictionary)
    if not all(names.low.all() for names in (heads, relations, tails)):  # one is empty
        return None
    return Columns(heads, relations, relation.indices.to_numpy(), tails, weights)


def _parse_columns(text: bytes, layout: Layout) -> pa.Table:
    columns = [role if role != "ignore" else f"ignore {i}" for i, role in enumerate(layout.columns)]
    wanted = [role for role in columns if not role.startswith("ignore")]
    if text.startswith(BOM):
        text = BOM + text  # the parser drops a mark at the start of any block; here it belongs to a name
    table = csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(column_names=columns, block_size=len(text), use_threads=False),
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False, double_quote=False, escape_char=False),
        convert_options=csv.ConvertOptions(
            include_columns=wanted,
            column_types={role: _TYPES[role] for role in wanted},
            strings_can_be_null=False,
            check_utf8=False,  # all of the text has been
        ),
    )
    if layout.weighted:
        place = table.schema.get_field_index("weight")
        table = table.set_column(place, "weight", table.column(place).cast(pa.float64()))
    return table


def _is_text(text: bytes) -> bool:
    """Whether it is UTF-8 without NUL, and each carriage return is before the end of a line."""
    if b"\0" in text:
        return False
    if b"\r" in text:
        letters = np.frombuffer(text, np.uint8)
        returns = letters[:-1] == ord("\r")  # the last byte is LF
        if (returns & (letters[1:] != ord("\n"))).any():
            return False
    return text.isascii() or _is_utf8(text)


def _is_utf8(text: bytes) -> bool:
    # Arrow looks at it without a copy, and other threads run meanwhile.
    bounds = np.array([0, len(text)])
    whole = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(text)])
    try:
        whole.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True
