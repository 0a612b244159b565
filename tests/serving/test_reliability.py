"""Reliability of the real server process: slow clients, load, stops, kills, reloads and keys."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from PIL import Image

from retrieval.cli.main import main
from serving.access.guard import PROBES
from serving.access.keys import add_key, remove_keys
from serving.problems import MEDIA_TYPE

from ..world import draw, encode, make_bundle
from .conftest import ENCRYPTION, Served, bearer, connected, operations, received, start, stop, until

SECONDS = float(os.environ.get("RETRIEVAL_SECONDS", "5"))  # that the long tests run for, more or less
PATIENCE = 60  # seconds for an answer on a busy machine: what takes longer hangs
LONG = 10 * PATIENCE  # seconds for what takes many answers
SEARCH = "/v1/search"
MB = 2**20
JPEG = {"content-type": "image/jpeg"}
QUERY = encode(draw(3, 5))
REQUEST = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: 5000\r\n\r\n"


@contextmanager
def running(world: Path, folder: Path, *options: str) -> Iterator[Served]:
    """Serve, and end it whatever happens."""
    served = start(world, folder, *options)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


def search(served: Served) -> httpx.Response:
    """Search on a connection of its own."""
    return httpx.post(f"{served.address}{SEARCH}", content=QUERY, headers=JPEG, timeout=PATIENCE, verify=ENCRYPTION)


@contextmanager
def load(work: Callable[[], None], *, threads: int) -> Iterator[None]:
    """Do some work again and again on threads, until the block ends; its errors are raised then."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            work()

    with ThreadPoolExecutor(threads) as pool:
        tasks = [pool.submit(repeat) for _ in range(threads)]
        try:
            yield
        finally:
            ended.set()
        for task in tasks:
            task.result()


def memory(served: Served, kind: str = "VmRSS") -> int:
    """Return the memory that the server holds, or held at most (VmHWM), in bytes."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path(f"/proc/{served.process.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def most_memory(served: Served, seconds: float) -> int:
    """Return the most memory that the server is seen to hold within a time, in bytes."""
    until, most = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        most = max(most, memory(served))
        time.sleep(0.05)
    return most


def open_files(served: Served) -> int:
    return len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))


# slow clients


@pytest.mark.end_to_end
def test_bodies_that_drip_are_cut_off_and_others_do_not_notice(world: Path, tmp_path: Path) -> None:
    drips = [(b"/v1/search", b"image/jpeg")] * 4
    drips += [(b"/v1/search", b"application/json"), (b"/v1/search/batch", b"multipart/form-data; boundary=b")] * 2
    drips += [(b"/v1/feedback", b"application/json"), (b"/v1/photos/x", b"image/jpeg")]
    healthy: list[int] = []

    def ask() -> None:
        healthy.append(search(served).status_code)
        time.sleep(0.05)

    with running(world, tmp_path, "--no-page") as served, ExitStack() as stack:
        files = open_files(served)
        dripping = [stack.enter_context(connected(served)) for _ in drips]
        for connection, (path, kind) in zip(dripping, drips, strict=True):
            connection.sendall(
                (REQUEST if path != b"/v1/photos/x" else REQUEST.replace(b"POST", b"PUT")) % (path, kind)
            )
        waiting = dict.fromkeys(dripping, b"")
        still_open, end = set(waiting), time.monotonic() + 2 * PATIENCE  # each is cut off after 15
        with load(ask, threads=1):
            until(lambda: len(healthy) >= 5)
            while still_open and time.monotonic() < end:
                still_open -= {connection for connection in still_open if is_closed(connection, waiting)}
                time.sleep(0.5)
        answers = [waiting[connection] for connection in dripping]
        until(lambda: open_files(served) <= files + 5)
    assert still_open == set()
    assert set(healthy) == {200}
    told = [(path, kind, answer.partition(b"\r\n")[0]) for (path, kind), answer in zip(drips, answers, strict=True)]
    assert [one for one in told if not one[2].startswith(b"HTTP/1.1 408 ")] == []
    assert all(MEDIA_TYPE.encode() in answer for answer in answers)


def is_closed(connection: socket.socket, received: dict[socket.socket, bytes]) -> bool:
    """Send one more byte and take all that came; return whether the server has hung up."""
    connection.settimeout(0.001)
    try:
        with suppress(ConnectionError):  # the server has hung up; its answer may have arrived before
            connection.sendall(b"a")
        while piece := connection.recv(65_536):
            received[connection] += piece
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


# load


@pytest.mark.end_to_end
def test_under_four_times_the_load_every_request_is_answered(world: Path, tmp_path: Path) -> None:
    threads, queue = 1, 4
    large = encode(draw(3, 5).resize((2000, 2000), Image.Resampling.NEAREST), "PNG")
    answers: list[tuple[int, str | None]] = []

    def ask() -> None:
        address = f"{served.address}{SEARCH}"
        response = httpx.post(address, content=large, headers=JPEG, timeout=PATIENCE, verify=ENCRYPTION)
        answers.append((response.status_code, response.headers.get("retry-after")))
        if response.status_code == 503:
            time.sleep(0.02)

    def fewest() -> int:
        counted = Counter(status for status, _ in answers)
        return min(counted[200], counted[503])

    options = ("--threads", str(threads), "--queue", str(queue), "--deadline", str(PATIENCE), "--no-page")
    with running(world, tmp_path, *options) as served:
        for _ in range(5):
            ask()
        with load(ask, threads=4 * (threads + queue)):
            warm, files = most_memory(served, 0.6 * SECONDS), open_files(served)
            grown = most_memory(served, SECONDS) - warm  # peak against peak: each photo in decoding is 12 MB and more
            assert open_files(served) <= files + 30
            until(lambda: fewest() > 10)
        counted = Counter(status for status, _ in answers)
        assert set(counted) == {200, 503}
        assert all(int(wait or 0) >= 1 for status, wait in answers if status == 503)
        assert grown < 40 * MB, f"{grown / MB:.0f} MB"
        answers.clear()
        for _ in range(10):
            ask()
        assert {status for status, _ in answers} == {200}
        metrics = httpx.get(f"{served.address}/metrics").text
        assert "retrieval_queue_depth 0.0" in metrics
        assert float(re.findall(r"^retrieval_busy_total (.*)$", metrics, re.MULTILINE)[0]) == counted[503]


# stops and kills


@pytest.mark.slow
@pytest.mark.parametrize("again", range(3))
def test_a_server_that_is_told_to_end_finishes_what_it_took(world: Path, tmp_path: Path, again: int) -> None:
    told = math.inf
    wrong: list[str] = []
    answered: Counter[int] = Counter()

    def ask() -> None:
        asked = time.monotonic()
        try:
            answer = search(served)
            assert answer.content
            answered[answer.status_code] += 1
            if answer.status_code not in (200, 503) or (answer.status_code == 503 and time.monotonic() < told):
                wrong.append(f"answered {answer.status_code}")
        except httpx.TransportError as error:
            if time.monotonic() < told:
                wrong.append(f"asked {told - asked:.2f} s before the end: {error!r}")
            time.sleep(0.05)

    with running(world, tmp_path, "--no-page") as served, ExitStack() as stack:
        head = (
            b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            % len(QUERY)
        )
        with load(ask, threads=4):
            until(lambda: answered[200] > 5)
            time.sleep(0.1 * again)
            taken = [stack.enter_context(connected(served)) for _ in range(8)]
            for connection in taken:
                connection.sendall(head)
            for connection in taken:  # the server has the request, and waits for its body
                assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
            told = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            until(lambda: not ready(served))
            for connection in taken:
                connection.sendall(QUERY)
            answers = [received(connection) for connection in taken]
            assert served.process.wait(timeout=PATIENCE) == 0
    assert wrong == []
    assert [answer.partition(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 8
    assert {json.loads(answer.partition(b"\r\n\r\n")[2])["matches"][0]["item_id"] for answer in answers} == {"item-03"}
    assert "Traceback" not in served.log.read_text()


def ready(served: Served) -> bool:
    """Return whether the server takes new requests."""
    try:
        return httpx.get(f"{served.address}/readyz", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.end_to_end
def test_what_was_acknowledged_outlives_kills(shop: Path) -> None:
    stored: dict[str, str] = {}
    removed: set[str] = set()
    numbers = iter(range(100_000))
    guard = threading.Lock()
    answered: Counter[int] = Counter()

    def write() -> None:
        with guard:
            number = next(numbers)
        photo_id, item_id = f"live/{number}", f"live-{number % 7}"
        address = f"{served.address}/v1/photos/live%2F{number}"
        with suppress(httpx.TransportError):
            image = encode(draw(100 + number % 7, number))
            response = httpx.put(
                f"{address}?item_id={item_id}", content=image, headers=JPEG, timeout=PATIENCE, verify=ENCRYPTION
            )
            answered[response.status_code] += 1
            if response.status_code == 200:
                stored[photo_id] = item_id
                if number % 5 == 0:
                    stored.pop(photo_id)  # from here on it is there or not
                    if httpx.delete(address, timeout=PATIENCE).status_code == 200:
                        removed.add(photo_id)

    def ask() -> None:
        with suppress(httpx.TransportError):
            answered[search(served).status_code] += 1

    for again in range(3):
        with running(shop, shop, "--no-page") as served:
            assert missing(served, stored, removed) == []
            enough = len(stored) + 10
            with load(write, threads=2), load(ask, threads=1):
                until(lambda enough=enough: len(stored) >= enough)  # type: ignore[misc]
                time.sleep(0.3 + 0.13 * again)
                served.process.kill()
                served.process.wait()
    with running(shop, shop, "--no-page") as served:
        assert missing(served, stored, removed) == []
        assert search(served).json()["matches"][0]["item_id"] == "item-03"
        photo = encode(draw(102, 9))
        found = httpx.post(f"{served.address}{SEARCH}", content=photo, headers=JPEG).json()
        assert found["matches"][0]["item_id"] == "live-2"
        assert stop(served) == 0
    assert set(answered) <= {200, 503}
    assert len(stored) > 20
    assert len(removed) > 3


def missing(served: Served, stored: dict[str, str], removed: set[str]) -> list[str]:
    """Return the acknowledged changes that the server does not know of."""
    with httpx.Client(base_url=f"{served.address}/v1/photos/", timeout=PATIENCE) as client:
        lost = []
        for photo_id, item_id in stored.items():
            response = client.get(photo_id.replace("/", "%2F"))
            if response.status_code != 200 or response.json()["item_id"] != item_id:
                lost.append(f"{photo_id}: {response.text}")
        back = [photo_id for photo_id in removed if client.get(photo_id.replace("/", "%2F")).status_code != 404]
    return lost + [f"{photo_id} is back" for photo_id in back]


# swaps


@pytest.mark.end_to_end
def test_bundles_are_swapped_under_load_without_a_failed_or_mixed_answer(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "gallery", tmp_path / "gallery")
    bundles = [make_bundle(tmp_path, threshold=threshold, name=f"of-{threshold}") for threshold in (0.5, 0.01)]
    thresholds = {bundle.bundle_id: bundle.threshold for bundle in bundles}
    assert len(thresholds) == 2
    wrong: list[str] = []
    seen: Counter[str] = Counter()

    def ask() -> None:
        with httpx.Client(base_url=served.address, timeout=PATIENCE) as client:
            for _ in range(20):
                response = client.post(f"{SEARCH}?explain=true", content=QUERY, headers=JPEG)
                if response.status_code != 200:
                    wrong.append(response.text)
                    continue
                told = response.json()
                seen[told["bundle_id"]] += 1
                distance, threshold = told["nearest_distance"], told["threshold"]
                match = distance <= threshold
                if (
                    thresholds[told["bundle_id"]] != threshold
                    or told["decision"] != ("match" if match else "no_match")
                    or bool(told["matches"]) != match
                    or any(found["distance"] > threshold for found in told["matches"])
                    or abs(told["margin"] - (threshold - distance)) > 1e-9
                ):
                    wrong.append(response.text)
                info = client.get("/v1/info").json()
                if thresholds[info["bundle_id"]] != info["threshold"]:
                    wrong.append(json.dumps(info))

    point(tmp_path, bundles[0].path)
    with running(tmp_path, tmp_path, "--no-page") as served, load(ask, threads=3):
        swaps, files, warm = 0, open_files(served), 0
        ends, safely = time.monotonic() + SECONDS, time.monotonic() + LONG
        while time.monotonic() < ends or swaps < 4 or len(seen) < 2 or min(seen.values()) <= 20:
            assert time.monotonic() < safely
            swaps += 1
            bundle = bundles[swaps % 2]
            point(tmp_path, bundle.path)
            told = httpx.post(f"{served.address}/v1/admin/reload", timeout=PATIENCE).json()
            assert told["bundle_id"]["after"] == bundle.bundle_id
            assert search(served).json()["bundle_id"] == bundle.bundle_id
            warm = warm or memory(served)
            time.sleep(0.5)
        assert open_files(served) <= files + 20
        assert memory(served) - warm < 60 * MB
    assert wrong == []


def point(folder: Path, bundle: Path) -> None:
    """Let `bundle` lead to another one, at once."""
    (folder / "next").symlink_to(bundle, target_is_directory=True)
    (folder / "next").replace(folder / "bundle")


# keys


@pytest.fixture(scope="module")
def locked(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path, str, str]]:
    """Return a server with its file of keys, a key that may search, and one that may do all."""
    folder = tmp_path_factory.mktemp("locked")
    for name in ("bundle", "gallery"):
        shutil.copytree(world / name, folder / name)
    keys = folder / "keys.json"
    searching, admin = add_key(keys, "shop", "search"), add_key(keys, "operator", "admin")
    with running(folder, folder, "--keys", str(keys)) as served:
        yield served, keys, searching, admin


@pytest.mark.end_to_end
def test_nothing_is_answered_without_a_key(locked: tuple[Served, Path, str, str]) -> None:
    served, _, searching, admin = locked
    routes = [*operations(served, admin), ("GET", "/openapi.json"), ("GET", "/"), ("GET", "/nothing"), ("GET", "/docs")]
    routes += [("GET", "/page/page.js"), ("GET", "/page/examples/x"), ("POST", "/page/examples/x")]
    routes += [("GET", "//v1/info"), ("GET", "/v1/../v1/info"), ("OPTIONS", SEARCH), ("HEAD", "/v1/info")]
    wrong_keys: list[dict[str, str]] = [{}, {"authorization": "Bearer"}]
    wrong_keys += [bearer(key) for key in ("x", searching[:-1], searching + "x", searching.upper())]
    wrong_keys += [{"authorization": told} for told in (searching, "Basic %%%", "Digest x")]
    wrong_keys += [{"x-api-key": ""}, {"x-api-key": "x"}, {"cookie": f"key={searching}"}]
    with httpx.Client(base_url=served.address) as client:
        for method, path in routes:
            for headers in wrong_keys if (method, path) == ("POST", SEARCH) else wrong_keys[:3]:
                response = client.request(method, path, headers=headers)
                assert response.status_code == 401, (method, path, headers, response.text)
                assert response.headers["www-authenticate"]
                assert response.headers["content-type"] == MEDIA_TYPE
        assert client.get(f"/v1/info?key={searching}&api_key={searching}").status_code == 401
        for probe in PROBES:
            assert client.get(probe).status_code == 200


def search_with(served: Served, key: str) -> httpx.Response:
    headers = {**JPEG, **bearer(key)}
    return httpx.post(f"{served.address}{SEARCH}", content=QUERY, headers=headers, timeout=PATIENCE, verify=ENCRYPTION)


def test_beyond_this_machine_there_is_no_server_without_keys(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.json"
    add_key(empty, "x", "search")
    remove_keys(empty, "x")
    command = ["retrieval", "serve", str(world / "bundle"), str(world / "gallery"), "--port", "1"]
    cases = [["--host", host] for host in ("0.0.0.0", "::", "192.0.2.1", "", "localhost.example")]  # noqa: S104
    cases += [["--host", "0.0.0.0", "--keys", str(file)] for file in (empty, tmp_path / "none.json")]  # noqa: S104
    cases += [["--keys", str(empty)]]
    for options in cases:
        monkeypatch.setattr(sys, "argv", [*command, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().err
        assert ended.value.code not in (0, None), options
        assert "keys" in told, (options, told)
        assert "Traceback" not in told, (options, told)


@pytest.mark.slow
def test_beyond_this_machine_a_server_with_keys_asks_for_them(world: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = add_key(keys, "x", "search")
    with running(world, tmp_path, "--host", "0.0.0.0", "--keys", str(keys)) as served:  # noqa: S104
        assert search(served).status_code == 401
        assert search_with(served, key).status_code == 200
        assert httpx.get(served.address, headers=bearer(key)).status_code == 404  # no page


@pytest.mark.slow
def test_a_long_day_costs_no_memory_and_no_files(world: Path, tmp_path: Path) -> None:
    answers: Counter[int] = Counter()
    strange = b"no image"

    def ask() -> None:
        with httpx.Client(base_url=served.address, timeout=20, verify=ENCRYPTION) as client:
            for number in range(50):
                image, expected = (strange, 400) if number % 10 == 0 else (QUERY, 200)
                status = client.post(SEARCH, content=image, headers=JPEG).status_code
                answers[status == expected] += 1

    with running(world, tmp_path, "--no-page") as served:
        with load(ask, threads=2):
            time.sleep(SECONDS)  # what is remembered fills up: answers, distances, windows
            until(lambda: answers[True] >= 5000)
            before, files, asked = memory(served), open_files(served), answers[True]
            time.sleep(SECONDS)
        thousands = max(1.0, (answers[True] - asked) / 1000)
        assert not answers[False]
        assert memory(served) - before < thousands * MB + 4 * MB
        assert open_files(served) <= files
