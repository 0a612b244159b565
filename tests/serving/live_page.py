"""An application served in this process, also under a path of a proxy, and the flags of a browser for it."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import uvicorn

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def serving(app: object) -> Iterator[str]:
    """Serve an application on a free local port and yield its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))  # type: ignore[arg-type]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.05)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def under_path(address: str, path: str) -> Iterator[str]:
    """Serve a server under a path by a proxy that leaves out the path, and yield the URL, which ends in a slash."""

    class Proxy(BaseHTTPRequestHandler):
        def answer(self) -> None:
            if not self.path.startswith(f"{path}/"):
                self.send_error(404, "outside of the path")
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            body = self.rfile.read(int(headers.get("Content-Length", 0)))
            answer = httpx.request(
                self.command, address + self.path.removeprefix(path), headers=headers, content=body, timeout=60
            )
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name not in ("transfer-encoding", "connection", "content-length", "content-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            pass

    for method in ("GET", "POST", "PUT", "DELETE"):
        setattr(Proxy, f"do_{method}", Proxy.answer)
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{path}/"
        finally:
            server.shutdown()
