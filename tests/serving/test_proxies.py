"""Proxies of the environment, as company networks set them, never come between a machine and its own server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from retrieval.client import ApiError, RetrievalClient, Unreachable
from retrieval.errors import InvalidParameter
from retrieval.retriever import Retriever
from serving.app import create_app

from ..world import draw, encode
from .live_page import serving

NOWHERE = "http://127.0.0.1:9"
PROXIES: dict[str, Mapping[str, str]] = {
    "SOCKS": {"ALL_PROXY": "socks5://127.0.0.1:9", "all_proxy": "socks5h://127.0.0.1:9"},
    "SOCKS 4": {"ALL_PROXY": "socks4://127.0.0.1:9"},
    "HTTP": {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "http_proxy": NOWHERE},
    "without a scheme": {"http_proxy": "127.0.0.1:9"},
    "nonsense": {"ALL_PROXY": "http://[::1"},
    "exceptions with a network": {"HTTP_PROXY": NOWHERE, "NO_PROXY": "localhost,127.0.0.1,::1,fe80::/10"},
    "other exceptions": {"ALL_PROXY": "socks5://127.0.0.1:9", "no_proxy": "example.org"},
}
pytestmark = pytest.mark.usefixtures("no_proxies")


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all_proxy", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def sets(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    def set_variables(variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.fixture(scope="module")
def address(retriever: Retriever) -> Iterator[str]:
    with serving(create_app(retriever, page=False)) as address:
        yield address


@contextmanager
def proxy(status: int, body: bytes) -> Iterator[str]:
    """Run a proxy that gives one answer to every request, and yield its address."""

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://user:secret@127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_of_the_same_machine_is_asked_without_a_proxy(
    address: str, sets: Callable[[Mapping[str, str]], None], name: str, host: str
) -> None:
    sets(PROXIES[name])
    with RetrievalClient(address.replace("127.0.0.1", host), retries=0) as client:
        assert client.search(encode(draw(3, 5))).matches[0].item_id == "item-03"


@pytest.mark.parametrize("url", ["http://shop.example", "https://shop.example"])
@pytest.mark.parametrize("name", ["SOCKS", "SOCKS 4", "nonsense"])
def test_a_proxy_that_cannot_be_used_is_named_with_the_way_around_it(
    sets: Callable[[Mapping[str, str]], None], name: str, url: str
) -> None:
    sets(PROXIES[name])
    with pytest.raises(InvalidParameter, match=r"proxy of the environment must be one.*NO_PROXY") as caught:
        RetrievalClient(url)
    assert repr(PROXIES[name].get("all_proxy", PROXIES[name]["ALL_PROXY"])) in str(caught.value)
    sets({"NO_PROXY": "shop.example, other.example"})
    RetrievalClient(url).close()


def test_a_proxy_that_does_not_answer_is_named_without_its_password(
    sets: Callable[[Mapping[str, str]], None],
) -> None:
    sets({"HTTP_PROXY": "http://user:secret@127.0.0.1:9"})
    with (
        RetrievalClient("http://shop.example", retries=0) as client,
        pytest.raises(Unreachable, match=r"through the proxy 127.0.0.1:9: ConnectError.*NO_PROXY") as caught,
    ):
        client.search(encode(draw(3, 5)))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, b"<h1>Denied</h1>", r"Forbidden \(status 403\)\. The answer came through the proxy 127.*NO_PROXY"),
        (200, b"<h1>Log in</h1>", r"the response through the proxy 127\S+ is not from this API"),
        (422, b'{"title": "top_k", "status": 422, "detail": "Give one"}', r"^top_k \(status 422\)\. Give one$"),
    ],
)
def test_an_answer_of_a_proxy_in_place_of_the_server_names_the_proxy(
    sets: Callable[[Mapping[str, str]], None], status: int, body: bytes, words: str
) -> None:
    with proxy(status, body) as place:
        sets({"http_proxy": place})
        with RetrievalClient("http://shop.example") as client, pytest.raises(ApiError, match=words):
            client.search(encode(draw(3, 5)))
