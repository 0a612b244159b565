"""Connections to public addresses only, which end when the time of a photo is over."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from typing import Any

import httpcore

from retrieval.errors import ImageUnreadable

ALLOWED = "RETRIEVAL_ALLOW_HOSTS"
KEPT_S = 5.0  # seconds for which an idle connection stays open
CONNECTIONS, IDLE = 100, 20
LOOKUPS = 32  # hosts that are looked up at the same time
UNICAST = ipaddress.IPv6Network("2000::/3")
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
OF_AZURE = ipaddress.IPv4Address("168.63.129.16")  # serves the secrets of a virtual machine, though its range is public

deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))  # of the photo that this thread fetches


def new_pool(context: ssl.SSLContext) -> httpcore.ConnectionPool:
    """Return a pool that keeps a connection for the host and port it was opened for, and no cookies."""
    return httpcore.ConnectionPool(
        context,
        max_connections=CONNECTIONS,
        max_keepalive_connections=IDLE,
        keepalive_expiry=KEPT_S,
        network_backend=PublicBackend(),
    )


def seconds_left(timeout: float | None = None) -> float:
    """Return the seconds until the deadline, at most `timeout`; raise TimeoutException if there are none."""
    left = deadline.get() - time.monotonic()
    if left <= 0:
        raise httpcore.TimeoutException("the time is over")
    return left if timeout is None else min(timeout, left)


class PublicBackend(httpcore.NetworkBackend):
    """Opens connections to the public addresses of a host."""

    def __init__(self) -> None:
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Open a connection to the address that was checked, so that a second answer of the name server is not used."""
        address = _address_of(host, port, seconds_left(timeout))
        return TimedStream(
            self._backend.connect_tcp(address, port, seconds_left(timeout), local_address, socket_options)
        )


class TimedStream(httpcore.NetworkStream):
    """A stream whose every step ends at the deadline: a server that sends a byte now and then cannot hold it longer."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes."""
        return self._stream.read(max_bytes, seconds_left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send bytes."""
        self._stream.write(buffer, seconds_left(timeout))

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Return the same stream with TLS."""
        return TimedStream(self._stream.start_tls(ssl_context, server_hostname, seconds_left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        """Return what the connection knows about itself."""
        return self._stream.get_extra_info(info)


def is_allowed(host: str) -> bool:
    """Return whether a host may be private, and be reached without TLS."""
    return bool(host) and host in os.environ.get(ALLOWED, "").split(",")


def _address_of(host: str, port: int, timeout: float) -> str:
    """Return the IP address to connect to; raise ImageUnreadable if the host has a private one."""
    lookup = _lookups().submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = lookup.result(timeout)
    except TimeoutError as error:
        lookup.cancel()
        raise httpcore.ConnectTimeout(f"the lookup of {host} takes too long") from error
    addresses = [str(entry[4][0]) for entry in found]
    if not is_allowed(host) and not all(map(is_public, addresses)):
        raise ImageUnreadable(f"{host} has a private address", remedy=f"Name the host in {ALLOWED} if you trust it")
    return addresses[0]


@cache
def _lookups() -> ThreadPoolExecutor:
    """Return the threads that look up hosts; callers wait for them with a time limit, which the lookup itself lacks."""
    return ThreadPoolExecutor(LOOKUPS, thread_name_prefix="lookup")


def is_public(address: str) -> bool:
    """Return whether an IP address, and an IPv4 address inside of it, is public."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        embedded = ip.ipv4_mapped or ip.sixtofour
        if ip in NAT64:
            embedded = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip.ipv4_mapped is None and not (ip in UNICAST and ip.is_global):
            return False
        if embedded is None:
            return True
        ip = embedded
    return ip.is_global and not ip.is_multicast and ip != OF_AZURE
