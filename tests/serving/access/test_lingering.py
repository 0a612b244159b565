"""An answer before the end of a body reaches clients of every kind, over real sockets."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import httpx
import pytest
import requests

from retrieval.retriever import Retriever
from serving.access.keys import add_key
from serving.access.limits import DROPPED, BodyLimit
from serving.app import create_app
from serving.settings import ServeSettings

from ..conftest import ENCRYPTION
from ..live_page import serving

MB = 2**20
SEARCH = "/v1/search"
JPEG = {"Content-Type": "image/jpeg"}
FORM_HEAD = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
Headers = dict[str, str]
Post = Callable[[str, bytes, Headers], int]


@pytest.fixture(scope="module")
def keyed(retriever: Retriever, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Return the address of a server that asks for keys, and a key for searches."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    key = add_key(file, "shop", "search")
    with serving(create_app(retriever, settings=ServeSettings(keys=file), page=False)) as address:
        yield address, key


def by_http_client(url: str, body: bytes, headers: Headers) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("POST", urlsplit(url).path, body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def in_chunks(url: str, body: bytes, headers: Headers) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    pieces = (body[start : start + MB] for start in range(0, len(body), MB))
    connection.request("POST", urlsplit(url).path, pieces, headers, encode_chunked=True)
    status = connection.getresponse().status
    connection.close()
    return status


def by_urllib(url: str, body: bytes, headers: Headers) -> int:
    request = urllib.request.Request(url, body, headers)
    try:
        return int(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60).status)
    except urllib.error.HTTPError as error:
        return error.code


def by_requests(url: str, body: bytes, headers: Headers) -> int:
    return requests.post(url, body, headers=headers, timeout=60).status_code


def by_httpx(url: str, body: bytes, headers: Headers) -> int:
    return httpx.post(url, content=body, headers=headers, timeout=60, verify=ENCRYPTION).status_code


def by_curl(url: str, body: bytes, headers: Headers) -> int:
    fields = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    line = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Expect:", "--data-binary", "@-", *fields, url]
    return int(subprocess.run(line, input=body, capture_output=True, check=True).stdout)


def by_fetch(url: str, body: bytes, headers: Headers) -> int:
    script = (
        f"fetch({json.dumps(url)}, {{method: 'POST', headers: {json.dumps(headers)}, body: Buffer.alloc({len(body)})}})"
        ".then((answer) => console.log(answer.status))"
    )
    return int(subprocess.run(["node", "-e", script], capture_output=True, check=True).stdout)


PROGRAMS = {by_curl: "curl", by_fetch: "node"}
CLIENTS = (by_http_client, in_chunks, by_urllib, by_requests, by_httpx, by_curl, by_fetch)


@pytest.mark.parametrize("size", [4, 40, 60])
@pytest.mark.parametrize("post", CLIENTS)
def test_a_refusal_before_the_body_was_read_reaches_a_client_that_sends_all_of_it(
    keyed: tuple[str, str], post: Post, size: int
) -> None:
    if post in PROGRAMS and not shutil.which(PROGRAMS[post]):
        pytest.skip(f"{PROGRAMS[post]} is not installed")
    address, key = keyed
    known = {**JPEG, "Authorization": f"Bearer {key}"}
    body = bytes(size * MB)
    wanted = [(SEARCH, JPEG, 401), ("/v1/admin/sync", known, 403)]
    wanted += [(SEARCH, known, 413)] if size > 30 else [("/v1/none", known, 404)]
    for path, headers, status in wanted * 3:
        assert post(address + path, body, headers) == status, (path, headers)


def test_a_form_that_is_too_long_is_refused_to_a_client_that_sends_all_of_it(keyed: tuple[str, str]) -> None:
    address, key = keyed
    body = FORM_HEAD + bytes(60 * MB) + b"\r\n--b--\r\n"
    for post in (by_http_client, in_chunks):
        assert post(address + SEARCH, body, {**FORM, "Authorization": f"Bearer {key}"}) == 413


def test_a_batch_that_is_too_large_is_refused_to_a_client_that_sends_all_of_it(keyed: tuple[str, str]) -> None:
    address, key = keyed
    for post in (by_http_client, in_chunks):
        assert post(f"{address}/v1/search/batch", bytes(120 * MB), {"Authorization": f"Bearer {key}"}) == 413


def test_a_body_that_arrives_too_slowly_is_refused_to_a_client_that_sends_all_of_it(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.app.BodyLimit", partial(BodyLimit, seconds=0.3))
    with serving(create_app(retriever, page=False)) as address:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
        connection.request("POST", SEARCH, _slowly(bytes(MB), parts=20), JPEG, encode_chunked=True)
        assert connection.getresponse().status == 408
        connection.close()


def _slowly(body: bytes, parts: int) -> Iterator[bytes]:
    for _ in range(parts):
        yield body
        time.sleep(0.1)


def test_a_full_queue_is_answered_to_a_client_that_sends_all_of_its_photo(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.pool.SearchPool.is_full", True)
    with serving(create_app(retriever, page=False)) as address:
        for post in (by_http_client, in_chunks, by_requests):
            assert [post(address + SEARCH, bytes(9 * MB), JPEG) for _ in range(3)] == [503] * 3


def test_a_body_without_end_is_dropped_up_to_a_bound_and_the_connection_closed(keyed: tuple[str, str]) -> None:
    url = urlsplit(keyed[0])
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000000\r\n\r\n")
        head = connection.recv(MB)
        sent = 0
        with suppress(ConnectionError):
            while sent < 10 * DROPPED:
                connection.sendall(bytes(MB))
                sent += MB
    assert head.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in head.lower()
    assert DROPPED <= sent < 2 * DROPPED


def test_a_body_that_never_comes_is_waited_for_until_its_time_is_over(
    keyed: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.access.limits.IDLE_S", 0.5)
    url = urlsplit(keyed[0])
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
        begin = time.monotonic()
        while connection.recv(MB):
            pass
        assert 0.4 < time.monotonic() - begin < 10


def test_a_refusal_of_a_request_without_a_body_keeps_the_connection(keyed: tuple[str, str]) -> None:
    connection = http.client.HTTPConnection(urlsplit(keyed[0]).netloc, timeout=60)
    for _ in range(2):
        connection.request("GET", "/v1/info")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Connection"]) == (401, None)
        answer.read()
        assert connection.sock is not None
    connection.close()
