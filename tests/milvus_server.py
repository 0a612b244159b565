"""A real Milvus server on loopback, in a folder of its own: the standalone server 2.3.5, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PORTS = (
    *("etcd_port", "root_coord_port", "proxy_port", "proxy_internal_port", "query_coord_port", "query_node_port"),
    *("index_coord_port", "index_node_port", "data_coord_port", "data_node_port"),
)
START_S = 120.0


class Server:
    """A server that can be killed, stopped for a while, and started again with the same data."""

    def __init__(self, folder: Path, *, token: bool = False) -> None:
        from milvus import MilvusServer, MilvusServerConfig

        ports = free_ports(len(PORTS) + 3)
        self.port, self.web = ports[PORTS.index("proxy_port")], ports[-1]
        client, peer = (f"http://127.0.0.1:{port}" for port in ports[-3:-1])
        self._etcd = folder / "etcd.yaml"  # Milvus would take the ports 2379 and 2380
        settings = {"name": "default", "data-dir": folder / "etcd", "listen-client-urls": client}
        settings |= {"advertise-client-urls": client, "listen-peer-urls": peer}
        settings |= {"initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}"}
        self._etcd.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
        more = {"authorization_enabled": True} if token else {}
        config = MilvusServerConfig()
        self._server = MilvusServer(
            config, wait_for_started=False, data_dir=str(folder), **dict(zip(PORTS, ports, strict=False)), **more
        )
        for name, value in more.items():
            config.set(name, value)
        self._server.webservice_port = self.web

    @property
    def address(self) -> str:
        """The address of the server, to which a name is added."""
        return f"milvus+http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        os.environ["ETCD_CONFIG_PATH"] = str(self._etcd)
        try:
            self._server.start()
        finally:
            del os.environ["ETCD_CONFIG_PATH"]
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.web}/healthz", timeout=5) as answer:
                    if b"OK" in answer.read():
                        time.sleep(1)
                        return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError("Milvus did not start")

    def signal(self, number: int) -> None:
        """Send a signal to the server."""
        os.kill(self._server.server_proc.pid, number)

    def kill(self) -> None:
        """Kill the server."""
        self.signal(signal.SIGKILL)
        self._server.server_proc.wait(30)
        self._server.stop()

    def stop(self) -> None:
        """End the server."""
        if self._server.server_proc is not None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self._server.server_proc.wait(10)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
        self._server.stop()


def free_ports(count: int) -> list[int]:
    """Return numbers of ports that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def running(*, token: bool = False) -> Iterator[Server]:
    """Start a server; end it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="milvus-"))
    server = Server(folder, token=token)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
