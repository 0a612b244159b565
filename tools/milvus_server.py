"""A real Milvus server on loopback, in a folder of its own: the standalone server 2.3.5, for tests and benchmarks."""

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
        from milvus import MilvusServer, MilvusServerConfig, _initialize_data_files

        ports = free_ports(len(PORTS) + 3)
        self.port, self._web = ports[PORTS.index("proxy_port")], ports[-1]
        config = MilvusServerConfig(authorization_enabled=token)
        server = MilvusServer(config, data_dir=str(folder), **dict(zip(PORTS, ports, strict=False)))
        config.set("authorization_enabled", token)
        config.resolve()
        _initialize_data_files(str(folder))
        client, peer = (f"http://127.0.0.1:{port}" for port in ports[-3:-1])  # else Milvus takes 2379 and 2380
        settings = {"name": "default", "data-dir": folder / "etcd", "listen-client-urls": client}
        settings |= {"advertise-client-urls": client, "listen-peer-urls": peer}
        settings |= {"initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}"}
        etcd = folder / "etcd.yaml"
        etcd.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
        self._folder, self._program = folder, server.get_milvus_executable_path()
        self._environment = os.environ | {
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(self._web),
            "MILVUS_RUN_DIR": str(folder / "run"),
            "LD_LIBRARY_PATH": f"{Path(self._program).parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "ETCD_CONFIG_PATH": str(etcd),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address of the server, to which a name is added."""
        return f"milvus+http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with (self._folder / "output.txt").open("ab") as log:
            words = [self._program, "run", "standalone"]
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env=self._environment, cwd=self._folder)
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/healthz", timeout=5) as answer:
                    if b"OK" in answer.read():
                        time.sleep(1)
                        return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"Milvus did not start: {(self._folder / 'output.txt').read_text()[-2000:]}")

    def signal(self, number: int) -> None:
        """Send a signal to the server."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the server."""
        self.signal(signal.SIGKILL)
        self._ended(30)

    def stop(self) -> None:
        """End the server."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        self._ended(10)

    def _ended(self, seconds: float) -> None:
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


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
