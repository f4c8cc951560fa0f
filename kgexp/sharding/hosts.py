"""The address by which other ranks reach this machine."""

import fcntl
import ipaddress
import os
import socket
import struct
from contextlib import suppress
from typing import Any

from kgexp.world import World

#: Linux's request for the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915
#: An address that is kept for examples: the way there is the way out of this machine.
_ELSEWHERE = "192.0.2.1"


def reachable_host(world: World) -> str:
    """Where a service of this rank is reached by the others: an address, or this machine's name if none is found.

    That is loopback where there is no other machine; the IPv4 address of the interface that GLOO_SOCKET_IFNAME names;
    else the address that this machine has on the way to the keeper of the job's store.
    """
    if world.one_machine:
        return "127.0.0.1"
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface and (address := _address_of(interface)):
        return address
    keeper = _keeper(world.store)
    for host in (keeper, _ELSEWHERE):
        address = _address_towards(host) if host else None
        # A machine may know its own name as loopback, where others know its address.
        if address and (_is_loopback(host) or not _is_loopback(address)):
            return address
    return socket.gethostname()


def _keeper(store: Any) -> str:
    """The host of the job's store."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", "") or os.environ.get("MASTER_ADDR", ""))


def _address_of(interface: str) -> str | None:
    """The IPv4 address of an interface, if it has one."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(reply[20:24])
    return None


def _address_towards(host: str) -> str | None:
    """This machine's own address on the way to a host; sends nothing."""
    places: list[Any] = []
    with suppress(OSError):
        places = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    for family, kind, _, _, place in sorted(places):  # IPv4 comes first
        with suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    return None


def _is_loopback(host: str) -> bool:
    """Whether a host is given as this machine's loopback."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
