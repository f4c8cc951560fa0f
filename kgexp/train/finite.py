"""The guard before every checkpoint: numbers that are not finite are never saved."""

from collections.abc import Iterable

from kgexp.errors import NonFiniteError
from kgexp.sharding.table import Table

#: Numbers looked at at a time.
_NUMBERS = 1 << 20


def check_finite(tables: Iterable[Table], step: int) -> None:
    """Looks at every row and its optimizer state after `step` steps.

    Raises:
        NonFiniteError: names the table and the tensor.
    """
    for table in tables:
        for name, tensor in table.state_tensors().items():
            rows = max(1, _NUMBERS // max(1, tensor[:1].numel()))
            for piece in tensor.split(rows):
                if not piece.isfinite().all():
                    raise NonFiniteError(
                        f"after step {step}, {table.name}.{name} holds NaN or infinity, so this step was not saved: "
                        "lower optimizer.lr or the weights of the triples, and start from an earlier checkpoint."
                    )
