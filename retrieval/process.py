"""Resources of a process: CPU cores, addresses and ports, proxies, and Python's garbage collector."""

from __future__ import annotations

import errno
import gc
import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from retrieval.errors import InvalidParameter

NO_PROXY = "no_proxy"  # in small letters, which come before capitals
PORT = "--port"  # option
NEXT_PORTS = 100  # tried in place of one that is taken


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_share() -> int:
    """Return the number of cores per process that the launcher started on this machine, at least 1."""
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # also set by our launcher


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.rstrip(".").lower().rpartition(".")[2] == "localhost"  # and names below it
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@contextmanager
def without_proxies() -> Iterator[None]:
    """Hide the proxies of the environment from libraries that make HTTP clients as they are imported."""
    before = os.environ.get(NO_PROXY)
    os.environ[NO_PROXY] = "*"
    try:
        yield
    finally:
        os.environ.pop(NO_PROXY)
        os.environ |= {} if before is None else {NO_PROXY: before}


def bind(host: str, port: int, option: str = PORT) -> list[socket.socket]:
    """Return a bound socket for each address of a host, not listening yet. Port 0 picks a free port.

    Raises InvalidParameter if the port, which an option names, is taken or the host is not an address of this machine.
    """
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise InvalidParameter("--host", "be an address of this machine", host) from error
    bound: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(addresses):
            address_and_port = (address[0], port_of(bound) if bound else port, *address[2:])
            bound.append(_bound(family, address_and_port, host, option))
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


def check_port(port: int, host: str = "127.0.0.1", option: str = PORT) -> None:
    """Raise InvalidParameter if a port is taken. Call it before long work, to fail early."""
    for listener in bind(host, port, option):
        listener.close()


def port_of(listeners: list[socket.socket]) -> int:
    """Return the port of bound sockets."""
    return int(listeners[0].getsockname()[1])


def _bound(family: int, address: tuple[str | int, ...], host: str, option: str) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise InvalidParameter("--host", "be an address of this machine", host) from error
        rule = "be free" if error.errno == errno.EADDRINUSE else f"be one to listen on ({error.strerror})"
        remedy = f"Use {option} {_free_port(family, address)}, which is free"
        raise InvalidParameter(option, rule, address[1], remedy=remedy) from error
    return listener


def _free_port(family: int, address: tuple[str | int, ...]) -> int:
    """Return the first free port after that of an address, 0 for any if a hundred are taken."""
    taken = int(address[1])
    for port in range(max(1024, taken + 1), min(taken + NEXT_PORTS, 65536)):  # smaller ones may be reserved
        with socket.socket(family, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.bind((address[0], port, *address[2:]))
            return port
    return 0


_SWITCHING = Lock()


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector while many objects are created that stay, such as imported modules.

    Where contexts of several threads overlap, the collector runs again once the first one ends.
    """
    with _SWITCHING:
        was_enabled = gc.isenabled()
        gc.disable()
    try:
        yield
    finally:
        with _SWITCHING:
            if was_enabled:
                gc.enable()
