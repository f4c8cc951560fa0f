"""The guard that what every rank holds is the same on every rank."""

import hashlib

import torch

from kgexp.errors import RankError
from kgexp.sharding.joint_table import JointTable
from kgexp.sharding.table import Table
from kgexp.world import World

#: Rows looked at at a time.
_ROWS = 1 << 16


def check_equal(table: Table, world: World) -> None:
    """Compares the bits of a table, optimizer state and all, over the ranks, if every rank holds all of it. Of a table
    that trainers have together, every rank holds the pinned slices.

    Raises:
        RankError: two ranks differ, so that at least one has trained on garbage.
    """
    if world.size == 1 or len(table.bounds) > 2:
        return
    digest = hashlib.blake2b(digest_size=16)
    tensors = table.shared_rows() if isinstance(table, JointTable) else table.state_tensors()
    for tensor in tensors.values():
        for piece in tensor.detach().split(_ROWS):
            digest.update(piece.cpu().contiguous().view(torch.uint8).numpy().data)
    digests = world.gather(f"the {table.name} rows", digest.hexdigest())
    for rank, other in enumerate(digests):
        if other != digests[0]:
            raise RankError(
                f"the {table.name} rows of rank {rank} are not those of rank 0, though every rank holds the same: look "
                "for faulty memory or a mix of library versions, and go on from the newest checkpoint."
            )
