"""Hostile input over HTTP: whatever is sent, the server refuses it with a proper answer and in little memory."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.access.guard import PROBES
from serving.problems import MEDIA_TYPE
from serving.settings import ServeSettings

from ..conftest import ROOT
from ..hostile import KINDS, METADATA, PHOTO_IDS, Case, images, mutated_images, picture
from ..world import draw, encode
from .conftest import ENCRYPTION, Served, connected, received, start, stop
from .test_reports import bundle_with_report

pytestmark = pytest.mark.slow  # these tests start a server of their own

FUZZ = int(os.environ.get("RETRIEVAL_FUZZ", "300"))
EXAMPLES = 15  # that schemathesis draws of an operation, beside its own
SEARCH = "/v1/search"
MB = 2**20
JPEG = {"content-type": "image/jpeg"}
PHOTO_BYTES = ServeSettings().photo_bytes
PATIENCE = 60  # seconds for an answer on a busy machine: what takes longer hangs
LEAK = re.compile(r"Traceback|File \"|site-packages|\.py\b|0x[0-9a-f]{6}|root:|/tmp/|/home/|/usr/")
THREADS = 4


@pytest.fixture(scope="module")
def server(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server of its own, warm, that nothing else asks."""
    folder = tmp_path_factory.mktemp("hostile")
    for name in ("bundle", "gallery"):
        shutil.copytree(world / name, folder / name)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TMPDIR", "HOME"):
            (folder / name).mkdir()
            patch.setenv(name, str(folder / name))
        running = start(folder, folder, "--no-page", "--deadline", str(PATIENCE))
    with httpx.Client(base_url=running.address, timeout=PATIENCE) as client:
        for kind in ("JPEG", "PNG", "WEBP") * 10:
            assert client.post(SEARCH, content=encode(picture(), kind), headers=JPEG).status_code == 200
    yield running
    stop(running)


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=PATIENCE, verify=ENCRYPTION) as client:
        yield client


@pytest.fixture(autouse=True)
def unharmed(server: Served, client: httpx.Client) -> Iterator[None]:
    """Check after each test that the server serves on, asked nobody, and left no file beside its gallery."""
    known = files_of(server)
    yield
    answer = client.post(SEARCH, content=encode(draw(3, 5)), headers=JPEG)
    assert (answer.status_code, answer.json()["matches"][0]["item_id"]) == (200, "item-03")
    assert server.strangers() == []
    assert files_of(server) == known


def files_of(server: Served, *places: str) -> set[Path]:
    """Return the files in all of the server's folder beside the gallery, or in some places of it."""
    folder = server.log.parent
    inside = [path for place in places or (".",) for path in (folder / place).rglob("*")]
    return {path for path in inside if folder / "gallery" not in path.parents}


@contextmanager
def growing_less_than(server: Served, size: int) -> Iterator[None]:
    """Check that the server's memory never grows by more, even for a moment."""
    place = Path(f"/proc/{server.process.pid}")
    (place / "clear_refs").write_text("5")  # the peak is counted from now

    def peak() -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", (place / "status").read_text())
        assert found
        return int(found[1]) * 1024

    before = peak()
    yield
    grown = peak() - before
    assert grown < size, f"{grown / MB:.0f} MB"


def faults_of(status: int, kind: str, text: str) -> list[str]:
    """Return what is wrong with an answer, whatever was asked."""
    faults = [f"it tells {found[0]!r}"] if (found := LEAK.search(text)) else []
    if status >= 500:
        faults.append(f"answered {status}")
    if kind.startswith("application/"):
        json.loads(text, parse_constant=faults.append)  # NaN is no JSON
    if status >= 400:
        if kind != MEDIA_TYPE:
            return [*faults, f"refused as {kind}"]
        problem = json.loads(text)
        if problem.keys() != {"type", "title", "status", "detail"} or problem["status"] != status:
            faults.append(f"refused with {problem}")
    return faults


def faults(response: httpx.Response, statuses: frozenset[int]) -> list[str]:
    """Return what is wrong with an answer that must have one of these statuses."""
    found = faults_of(response.status_code, response.headers.get("content-type", ""), response.text)
    if response.status_code not in statuses:
        found.append(f"{response.status_code} is none of {sorted(statuses)}: {response.text[:200]}")
    return found


def test_nothing_is_written_beside_what_was_asked(server: Served) -> None:
    assert files_of(server, "TMPDIR", "HOME") == set()


# images


@pytest.mark.parametrize("kind", KINDS)
def test_each_odd_image_is_searched_and_each_hostile_one_refused(
    server: Served, client: httpx.Client, kind: str
) -> None:
    with growing_less_than(server, (500 if kind == "costly" else 150) * MB):
        wrong = [f"{case.name}: {fault}" for case in images(kind) for fault in faults_of_case(client, case)]
    assert not wrong, "\n".join(wrong)


def faults_of_case(client: httpx.Client, case: Case) -> list[str]:
    """Return what is wrong with the answer to one of the corpus."""
    response = client.post(SEARCH, content=case.data, headers={"content-type": case.kind})
    found = faults(response, case.statuses)
    if response.status_code == 200 and case.like:
        plain = client.post(SEARCH, content=case.like, headers=JPEG).json()
        told = response.json()
        if told["nearest"]["item_id"] != plain["nearest"]["item_id"] or told["decision"] != plain["decision"]:
            found.append(f"seen as {told['nearest']}, not {plain['nearest']}")
        if abs(told["nearest_distance"] - plain["nearest_distance"]) > 0.02:
            found.append(f"distance {told['nearest_distance']}, not {plain['nearest_distance']}")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_images_are_refused_where_they_would_be_stored(client: httpx.Client, kind: str) -> None:
    version = client.get("/v1/info").json()["gallery"]["version"]
    wrong: list[str] = []
    for case in refused(kind):
        response = client.put("/v1/photos/hostile?item_id=x", content=case.data, headers={"content-type": case.kind})
        wrong += [f"{case.name}: {fault}" for fault in faults(response, case.statuses)]
    assert not wrong, "\n".join(wrong)
    assert client.get("/v1/photos/hostile").status_code == 404
    assert client.get("/v1/info").json()["gallery"]["version"] == version


def refused(kind: str) -> list[Case]:
    """Return the images of a kind that are refused."""
    return [case for case in images(kind) if 200 not in case.statuses]


def test_a_batch_refuses_the_bad_ones_alone(client: httpx.Client) -> None:
    good = encode(picture())
    bad = [case for kind in KINDS for case in refused(kind) if 0 < len(case.data) < 100_000][:30]
    files = [("images", ("a.jpg", data, "image/jpeg")) for case in bad for data in (case.data, good)]
    answers = client.post("/v1/search/batch", files=files).json()["answers"]
    assert [answer["decision"] for answer in answers[1::2]] == ["match"] * len(bad)
    told = [(case.name, answer["status"]) for case, answer in zip(bad, answers[::2], strict=True)]
    assert [fact for fact, case in zip(told, bad, strict=True) if fact[1] not in case.statuses] == []


# mutations


def test_no_mutated_file_fails_or_hangs(server: Served) -> None:
    def upload(seed: int) -> tuple[Counter[int], list[str]]:
        statuses: Counter[int] = Counter()
        wrong: list[str] = []
        address = server.address.removeprefix("http://")
        with closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as connection:
            for number, data in enumerate(mutated_images(FUZZ // THREADS, seed)):
                connection.request("POST", SEARCH, data, JPEG)
                response = connection.getresponse()
                text = response.read().decode()
                found = faults_of(response.status, response.headers["content-type"], text)
                if response.status not in (200, 400, 413, 415):
                    found.append(f"answered {response.status}")
                wrong += [f"mutant {seed}/{number}: {fault}" for fault in found]
                statuses[response.status] += 1
        return statuses, wrong

    with growing_less_than(server, 150 * MB), ThreadPoolExecutor(THREADS) as pool:
        done = list(pool.map(upload, range(THREADS)))
    statuses = sum((counted for counted, _ in done), Counter[int]())
    wrong = [fault for _, faults in done for fault in faults]
    assert not wrong, "\n".join(wrong[:20])
    assert statuses.total() == FUZZ // THREADS * THREADS
    assert min(statuses[200], statuses[400]) > FUZZ // 20  # both ways were gone


# forms and JSON


def form(*parts: tuple[str, bytes], boundary: str = "b", end: bool = True) -> bytes:
    """Return a form of parts: what stands behind `form-data`, and the content."""
    head = "--{}\r\nContent-Disposition: form-data{}\r\n\r\n"
    body = b"".join(head.format(boundary, told).encode() + content + b"\r\n" for told, content in parts)
    return body + (f"--{boundary}--\r\n".encode() if end else b"")


def test_odd_forms_are_searched_or_refused(client: httpx.Client) -> None:
    image = encode(picture())
    file = '; name="image"; filename="a.jpg"'
    kind = "multipart/form-data; boundary=b"
    refused, either = frozenset({400, 413, 415, 422}), frozenset({200, 400})
    good = form((file, image))
    cases: dict[str, tuple[str, bytes, frozenset[int]]] = {
        "well": (kind, good, frozenset({200})),
        "other fields beside": (kind, form(('; name="note"', b"x"), (file, image)), frozenset({200})),
        "path as name": (kind, form(('; name="image"; filename="../../../../tmp/x.jpg"', image)), frozenset({200})),
        "absolute path as name": (kind, form(('; name="image"; filename="/etc/cron.d/x"', image)), frozenset({200})),
        "NUL in the name": (kind, form(('; name="image"; filename="a\0.jpg"', image)), either),
        "name of 50 kB": (kind, form((f'; name="image"; filename="{"a" * 50_000}"', image)), either),
        "encoded name": (kind, form(("; name=image; filename*=UTF-8''..%2F..%2Fx", image)), either),
        "no file name": (kind, form(('; name="image"', image)), refused),
        "no field name": (kind, form(('; filename="a.jpg"', image)), refused),
        "other field": (kind, form(('; name="picture"; filename="a.jpg"', image)), refused),
        "two files": (kind, form((file, image), (file, image)), refused),
        "empty file": (kind, form((file, b"")), refused),
        "no parts": (kind, form(), refused),
        "empty body": (kind, b"", refused),
        "wrong boundary": ("multipart/form-data; boundary=c", good, refused),
        "no boundary": ("multipart/form-data", good, refused),
        "empty boundary": ("multipart/form-data; boundary=", good, refused),
        "boundary of 8 kB": (f"multipart/form-data; boundary={'b' * 8000}", good, refused),
        "cut off": (kind, good[: len(good) // 2], refused),
        "no end": (kind, form((file, image), end=False), either),
        "5,000 parts": (kind, form(*[('; name="x"', b"")] * 5000), refused),
        "5,000 files": (kind, form(*[(file, b"x")] * 5000), refused),
        "field of 2 MB": (kind, form(('; name="x"', bytes(2 * MB)), (file, image)), refused),
        "field name of 1 MB": (kind, form((f'; name="{"x" * MB}"', b"x"), (file, image)), refused),
        "1,000 headers": (kind, form((file + "\r\nX: y" * 1000, image)), either),
        "form in a form": (kind, form((file, form((file, image)))), refused),
        "charset that is none": (f"{kind}; charset=nothing", good, either),
        "not a form": ("application/x-www-form-urlencoded", b"image=http://192.0.2.1/", refused),
    }
    wrong: list[str] = []
    for name, (told, body, statuses) in cases.items():
        response = client.post(SEARCH, content=body, headers={"content-type": told})
        wrong += [f"{name}: {fault}" for fault in faults(response, statuses)]
    assert not wrong, "\n".join(wrong)


def test_odd_json_is_refused(client: httpx.Client) -> None:
    image = base64.b64encode(encode(picture())).decode()
    refused = frozenset({400, 422})
    bodies: dict[str, str] = {
        "not JSON": "{",
        "nothing": "",
        "null": "null",
        "a list": "[]",
        "a number": "1",
        "no image": "{}",
        "not base64": '{"image": "%%%"}',
        "base64 of text": json.dumps({"image": base64.b64encode(b"no image").decode()}),
        "broken base64": json.dumps({"image": image[:-3]}),
        "base64 with a gap": json.dumps({"image": image[:40] + " " + image[40:]}),
        "an address": '{"image": "http://192.0.2.1/x.jpg"}',
        "a data: URL of text": json.dumps(
            {"image": f"data:image/jpeg;base64,{base64.b64encode(b'no image').decode()}"}
        ),
        "a data: URL without base64": json.dumps({"image": f"data:image/jpeg,{image}"}),
        "a path": '{"image": "file:///etc/passwd"}',
        "umlauts": '{"image": "äöü"}',
        "half a surrogate": '{"image": "\\ud800"}',
        "empty image": '{"image": ""}',
        "image is a list": '{"image": [1, 2]}',
        "unknown field": json.dumps({"image": image, "url": "http://192.0.2.1/x.jpg"}),
        "threshold": json.dumps({"image": image, "threshold": 9}),
        "huge number": f'{{"image": "{image}", "top_k": {"9" * 5000}}}',
        "huge power": f'{{"image": "{image}", "top_k": 1e999}}',
        "NaN": f'{{"image": "{image}", "top_k": NaN}}',
        "top_k of none": json.dumps({"image": image, "top_k": 0}),
        "long filter": json.dumps({"image": image, "where": "x" * 3000}),
        "filter of an unknown column": json.dumps({"image": image, "where": "nothing = 1"}),
        "filter that injects": json.dumps({"image": image, "where": "1=1; DROP TABLE photos"}),
        "deep filter": json.dumps({"image": image, "where": "(" * 1900}),
        "deep filter of not": json.dumps({"image": image, "where": "not " * 480 + "x = 1"}),
        "deep list": "[" * 100_000,
        "deep objects": '{"image":' * 100_000,
        "Latin-1": "\xe4",
    }
    wrong: list[str] = []
    for name, text in bodies.items():
        body = text.encode("latin-1" if name == "Latin-1" else "utf-8")
        response = client.post(SEARCH, content=body, headers={"content-type": "application/json"})
        wrong += [f"{name}: {fault}" for fault in faults(response, refused)]
    assert not wrong, "\n".join(wrong)


def test_odd_photos_for_the_gallery_are_refused_or_come_back_as_they_were(client: httpx.Client) -> None:
    image = base64.b64encode(encode(draw(5, 7))).decode()
    wrong: list[str] = []
    for photo_id in PHOTO_IDS:
        path = "/v1/photos/" + "".join(f"%{byte:02X}" for byte in photo_id.encode())
        put = client.put(path, json={"image": image, "item_id": "odd", "metadata": {}})
        wrong += [f"{photo_id[:20]!r}: {fault}" for fault in faults(put, frozenset({200, 404, 422}))]
        if put.status_code == 200:
            told = {**client.get(path).json(), "etag": ""}
            if told != {"photo_id": photo_id, "item_id": "odd", "metadata": {}, "etag": ""}:
                wrong.append(f"{photo_id[:20]!r} came back as {client.get(path).text[:200]}")
            wrong += [f"{photo_id[:20]!r}: {fault}" for fault in faults(client.delete(path), frozenset({200}))]
    for name, text in METADATA.items():
        body = f'{{"image": "{image}", "item_id": "odd", "metadata": {text}}}'
        headers = {"content-type": "application/json"}
        put = client.put("/v1/photos/odd", content=body.encode(), headers=headers)
        found = faults(put, frozenset({200, 413, 422}))
        if put.status_code == 200:
            for response in (
                client.get("/v1/photos/odd"),
                client.get("/v1/items/odd"),
                client.post(SEARCH, content=encode(draw(5, 7)), headers=JPEG),
                client.delete("/v1/photos/odd"),
            ):
                found += [f"then {response.request.method}: {fault}" for fault in faults(response, frozenset({200}))]
        wrong += [f"{name}: {fault}" for fault in found]
    assert not wrong, "\n".join(wrong)


# bodies and heads


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
@pytest.mark.parametrize(
    ("path", "kind", "head"),
    [
        (SEARCH, "image/jpeg", b""),
        (SEARCH, "multipart/form-data; boundary=b", form(('; name="image"; filename="a"', b""), end=False)),
        (SEARCH, "application/json", b'{"image": "'),
        ("/v1/feedback", "application/json", b'{"request_id": "'),
    ],
    ids=["raw", "form", "JSON", "feedback"],
)
def test_300_megabytes_are_not_taken(server: Served, path: str, kind: str, head: bytes, chunked: bool) -> None:
    with growing_less_than(server, 20 * MB):
        answer, sent = flood(server, path, kind, head, chunked=chunked)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert MEDIA_TYPE.encode() in answer
    assert b"connection: close" in answer.lower()
    assert sent < 4 * PHOTO_BYTES


def flood(server: Served, path: str, kind: str, head: bytes, *, chunked: bool) -> tuple[bytes, int]:
    """Send 300 MB until the server answers; return the answer, and the bytes that it took."""
    size = 300 * MB
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    sent = 0
    with connected(server) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{length}\r\n\r\n".encode()
        )
        piece = head or b"\xff" * MB
        while sent < size and not select.select([connection], [], [], 0)[0]:
            try:
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            except ConnectionError:
                break
            sent += len(piece)
            piece = b"a" * MB
        return received(connection), sent


HOST = b" HTTP/1.1\r\nHost: localhost\r\n"
POST, GET, CLOSE = b"POST /v1/search" + HOST, b"GET /v1/info" + HOST, b"Connection: close\r\n\r\n"
HEADS: dict[str, bytes] = {
    "length is a word": POST + b"Content-Length: abc\r\n\r\n",
    "length below zero": POST + b"Content-Length: -1\r\n\r\n",
    "length with a sign": POST + b"Content-Length: +5\r\n\r\nabcde",
    "length of 30 digits": POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
    "length of 18 digits": POST + b"Content-Length: " + b"9" * 18 + b"\r\n\r\n",
    "length of 5,000 zeros": POST + b"Content-Length: " + b"0" * 5000 + b"\r\n" + CLOSE,
    "host without its bracket": b"GET /v1/items HTTP/1.1\r\nHost: [::1\r\n" + CLOSE,
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "length and chunks": POST + b"Content-Length: 900\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk of no size": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    "chunk of a huge size": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20,
    "unknown coding": POST + b"Transfer-Encoding: bogus\r\n\r\n",
    "unknown method": b"BREW /v1/search" + HOST + CLOSE,
    "unknown version": b"GET /v1/search HTTP/9.9\r\nHost: localhost\r\n" + CLOSE,
    "not HTTP": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(300),
    "bytes in the path": b"GET /v1/items/\xff\xfe" + HOST + CLOSE,
    "NUL in a header": GET + b"X: a\0b\r\n\r\n",
    "space before a colon": b"GET /v1/info HTTP/1.1\r\nHost : x\r\n\r\n",
    "path of 100 kB": b"GET /v1/items/" + b"a" * 100_000 + HOST + CLOSE,
    "header of 1 MB": GET + b"X: " + b"a" * MB + b"\r\n" + CLOSE,
    "100,000 headers": GET + b"X: y\r\n" * 100_000 + CLOSE,
}


@pytest.mark.parametrize("name", HEADS)
def test_odd_heads_are_refused(server: Served, name: str) -> None:
    with connected(server) as connection:
        with suppress(ConnectionError):
            connection.sendall(HEADS[name])
        answer = received(connection)
    assert not answer or re.match(rb"HTTP/1\.1 4\d\d ", answer), answer[:300]
    assert not LEAK.search(answer.decode("latin-1"))


def test_an_endless_header_is_not_kept(server: Served) -> None:
    sent = 0
    with growing_less_than(server, 20 * MB), connected(server) as connection, suppress(ConnectionError):
        connection.sendall(b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\nX: ")
        while sent < 200 * MB:
            connection.sendall(b"a" * 65_536)
            sent += 65_536
    assert sent < 20 * MB, f"{sent / MB:.0f} MB were taken"


def test_requests_that_are_sent_ahead_are_answered_in_order_but_not_piled_up(server: Served) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connected(server) as connection:
        connection.sendall(3 * request + last)
        statuses = re.findall(rb"HTTP/1\.1 (\d+) ", received(connection))
    assert statuses == [b"200", b"200", b"200", b"404"]
    with growing_less_than(server, 20 * MB), connected(server) as connection, ThreadPoolExecutor(1) as reader:
        answers = reader.submit(received, connection)  # a client that reads, too
        end = time.monotonic() + 3  # in which thousands of requests are sent ahead of their answers
        with suppress(ConnectionError):
            while time.monotonic() < end:
                connection.sendall(1000 * request)
        assert httpx.get(f"{server.address}/healthz", timeout=PATIENCE).status_code == 200
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        answers.result()


def test_no_address_is_ever_fetched(client: httpx.Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bait:
        bait.setblocking(False)  # a connection that was made waits there
        url = f"http://127.0.0.1:{bait.getsockname()[1]}/x.jpg"
        svg = f'<svg xmlns="http://www.w3.org/2000/svg"><image href="{url}"/></svg>'.encode()
        headers = {"content-location": url, "referer": url, "x-forwarded-host": url, "forwarded": f"for={url}"}
        asked: list[httpx.Response] = [
            client.post(SEARCH, json={"image": url}),
            client.post(SEARCH, json={"url": url}),
            client.post(SEARCH, content=url.encode(), headers={"content-type": "text/plain"}),
            client.post(SEARCH, content=url.encode(), headers={"content-type": "text/uri-list"}),
            client.post(SEARCH, data={"image": url}),
            client.post(SEARCH, data={"image": url}, files={"image": ("a.jpg", url.encode(), "text/uri-list")}),
            client.post(f"{SEARCH}?url={url}&image={url}", content=b""),
            client.post(SEARCH, content=svg, headers={"content-type": "image/svg+xml"}),
            client.post(SEARCH, content=b"", headers=headers),
            client.put("/v1/photos/x?item_id=x", content=url.encode()),
            client.put("/v1/photos/x", json={"image": url, "item_id": "x"}),
            client.get(f"/v1/thumbnails/{url}"),
            client.get(f"/v1/photos/{url}"),
        ]
        with pytest.raises(BlockingIOError):
            bait.accept()
    assert [(r.request.url, r.status_code) for r in asked if not 400 <= r.status_code < 500] == []


# the OpenAPI document


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory, world: Path) -> Iterator[Served]:
    """Return a server whose gallery may be changed, and whose bundle has a report."""
    folder = tmp_path_factory.mktemp("documented")
    bundle_with_report(folder).path.rename(folder / "bundle")
    shutil.copytree(world / "gallery", folder / "gallery")
    running = start(folder, folder, "--no-page", "--feedback-photos", str(folder / "judged"))
    asked = {**JPEG, "x-request-id": "known"}
    httpx.post(f"{running.address}{SEARCH}", content=encode(draw(3, 5)), headers=asked).raise_for_status()
    yield running
    stop(running)


HOOKS = """
import base64
import schemathesis
from hypothesis import strategies as st
from tests.world import draw, encode

IMAGES = [encode(draw(item, 7), kind) for item in range(4) for kind in ("JPEG", "PNG")]
TEXTS = [base64.b64encode(image).decode() for image in IMAGES]
schemathesis.openapi.media_type("image/*", st.sampled_from(IMAGES))


@schemathesis.hook
def map_path_parameters(context, parameters):
    known = {"item_id": ("item-{:02d}", 0), "photo_id": ("item-{:02d}/0.png", 5)}  # of others than are deleted whole
    for name, value in dict(parameters or {}).items():
        number = sum(str(value).encode("utf-8", "replace"))
        if name in known and number % 2:
            text, first = known[name]
            parameters[name] = text.format(first + number // 2 % 5)
        if name == "request_id" and number % 2:
            parameters[name] = "known"
    return parameters


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and isinstance(body.get("image"), str):
        body["image"] = TEXTS[len(body["image"]) % len(TEXTS)]
    if isinstance(body, dict) and isinstance(body.get("images"), list):  # a form
        body["images"] = IMAGES[: 2 + len(body["images"]) % 3]
    if isinstance(body, dict) and "verdict" in body and len(str(body.get("item_id"))) % 3:
        body["item_id"] = "item-03" if body["verdict"] == "wrong" else ""
    return body
"""


def test_every_operation_is_as_the_document_says(documented: Served, tmp_path: Path) -> None:
    (tmp_path / "photos_and_ids.py").write_text(HOOKS)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{documented.address}/openapi.json"]
    checks = ["not_a_server_error", "status_code_conformance", "content_type_conformance"]
    options = {
        "checks": ",".join([*checks, "response_schema_conformance"]),
        "max-examples": str(EXAMPLES),
        "request-timeout": "10",
        "suppress-health-check": "all",
    }
    flags = ["--generation-deterministic", "--continue-on-failure", "--no-color"]
    done = subprocess.run(
        [*command, *flags, *(f"--{name}={value}" for name, value in options.items())],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "photos_and_ids", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nresolvable" not in done.stdout, done.stdout
    answered = {(told["method"], told["route"].replace(":any", "")) for told in requests_of(documented, 200)}
    assert answered >= set(operations_of(documented))  # each was reached, and not only refused


def operations_of(server: Served) -> list[tuple[str, str]]:
    """Return method and path of all operations of the document."""
    paths: dict[str, dict[str, Any]] = httpx.get(f"{server.address}/openapi.json").json()["paths"]
    found = [(method.upper(), path) for path, operations in paths.items() for method in operations]
    return [operation for operation in found if operation[1] not in PROBES]  # those are not logged


def requests_of(server: Served, status: int) -> list[dict[str, Any]]:
    """Return what the log tells of the requests that were answered with a status."""
    lines = [line for line in server.log.read_text().splitlines() if line.startswith("{")]
    return [told for told in map(json.loads, lines) if told.get("status") == status and "route" in told]
