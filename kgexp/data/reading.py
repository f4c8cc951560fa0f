"""Reading a file of triples: tab-separated columns to dictionary-encoded names, block by block.

Blocks go through Arrow's CSV parser and a few checks of the whole block; a block that fails any of them is
scanned line by line, only to say which line is at fault.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from kgexp.data.blocks import BLOCK_BYTES, BOM, Block, blocks
from kgexp.data.layout import NAMES, Layout, fault
from kgexp.errors import DataError

_NAME = pa.dictionary(pa.int32(), pa.large_string())


@dataclass(frozen=True)
class Columns:
    """The columns of one block of a file.

    Attributes:
        names: for `head`, `relation` and `tail` chunks of dictionary-encoded names, b values in all. A chunk's
            dictionary has its names in the order of first appearance.
        weights: float64[b], or None without a weight column.
    """

    names: dict[str, list[pa.DictionaryArray]]
    weights: npt.NDArray[np.float64] | None


def read(path: Path, layout: Layout, block_bytes: int = BLOCK_BYTES) -> Iterator[Columns]:
    """Reads a file block by block; the columns in all do not depend on `block_bytes`.

    Raises:
        DataError: the file cannot be read, holds no triple, or has an unfit line (which is named).
    """
    empty = True
    for block in _below_header(path, layout, block_bytes):
        table = _parse(block, layout)
        if table is None:
            raise fault(path, block, layout) or DataError(
                f"{path}, line {block.line} or soon after it: the text cannot be parsed as columns that "
                "tabs separate; look for unusual characters there."
            )
        empty = False
        names = {role: table.column(role).chunks for role in NAMES}
        yield Columns(names, table.column("weight").to_numpy() if layout.weighted else None)
    if empty:
        what = "nothing but a header" if layout.header else "nothing"
        raise DataError(f"{path}, line 1: expected a triple, but the file holds {what}; fill it or remove it.")


def ahead(columns: Iterator[Columns]) -> Iterator[Columns]:
    """The same blocks; another thread reads the next one while one is used."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, columns, None)
        while (block := coming.result()) is not None:
            coming = thread.submit(next, columns, None)
            yield block


def _below_header(path: Path, layout: Layout, block_bytes: int) -> Iterator[Block]:
    for block in blocks(path, block_bytes):
        if block.line > 1 or not layout.header:
            yield block
            continue
        header, _, text = block.text.partition(b"\n")
        if problem := fault(path, Block(1, header + b"\n"), layout, header=True):
            raise problem
        if text:
            yield Block(2, text)


def _parse(block: Block, layout: Layout) -> pa.Table | None:
    """The block's columns: names, and weights as float64; None if anything at all is odd about it."""
    text = block.text
    if b"\0" in text or text.count(b"\r") != text.count(b"\r\n") or not _is_utf8(text):
        return None
    try:
        table = _parse_columns(text, layout)
    except pa.ArrowInvalid:
        return None
    # The parser skips blank lines and takes a lone carriage return for a line's end.
    if table.num_rows != text.count(b"\n") or any(_has_empty_name(table.column(role)) for role in NAMES):
        return None
    if layout.weighted:
        weights = table.column("weight").to_numpy()
        if not (np.isfinite(weights) & (weights >= 0)).all():
            return None
    return table


def _parse_columns(text: bytes, layout: Layout) -> pa.Table:
    columns = [role if role != "ignore" else f"ignore {i}" for i, role in enumerate(layout.columns)]
    wanted = [role for role in columns if not role.startswith("ignore")]
    if text.startswith(BOM):
        text = BOM + text  # the parser drops a mark at the start of any block; here it belongs to a name
    table = csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(column_names=columns, block_size=len(text)),
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False, double_quote=False, escape_char=False),
        convert_options=csv.ConvertOptions(
            include_columns=wanted,
            column_types={role: pa.large_string() if role == "weight" else _NAME for role in wanted},
            strings_can_be_null=False,
        ),
    )
    if layout.weighted:
        place = table.schema.get_field_index("weight")
        table = table.set_column(place, "weight", table.column(place).cast(pa.float64()))
    return table


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_empty_name(column: pa.ChunkedArray) -> bool:
    return any(pc.min(pc.binary_length(chunk.dictionary)).as_py() == 0 for chunk in column.chunks)
