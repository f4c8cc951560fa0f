"""A store's connection that ends when the machine at its other end cannot be reached any more.

A request to torch's `TCPStore` waits for its answer without end. Where the network is cut nobody says that none will
come, and the kernel tries for a quarter of an hour. It is told to give up earlier; the request fails then.
"""

import math
import re
import socket
from contextlib import suppress

from torch._C._distributed_c10d import Store


def give_up_after(store: Store, seconds: float) -> None:
    """Has requests to a store fail once its keeper's machine has not answered for so long, at least 1 s.

    What a keeper does not do counts for nothing: while its machine is reached, it is waited for. Stores without a
    connection stay as they are, as does one of torch's whose connection is not found.

    Args:
        store: behind any number of prefixes; one that was cloned is another connection.
        seconds: of silence.
    """
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    found = re.search(r"client=TCPClient\(SocketImpl\(fd=(\d+)", repr(store))  # torch tells it nowhere else
    if found is None:
        return
    whole = max(1, math.ceil(seconds))
    often = max(1, whole // 4)
    options = {"TCP_KEEPIDLE": often, "TCP_KEEPINTVL": often, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 1000 * whole}
    with suppress(OSError), socket.fromfd(int(found[1]), socket.AF_INET6, socket.SOCK_STREAM) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # asks where nothing is under way
        for name, value in options.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
