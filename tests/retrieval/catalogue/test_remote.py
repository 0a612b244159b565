"""Photos at addresses: real servers in this process, and the addresses that are never asked."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import httpcore
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from retrieval.catalogue import connections, stores, web
from retrieval.catalogue.photos import Photo, UploadedPhoto
from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.reading import contents
from retrieval.catalogue.remote import RemotePhoto, is_url
from retrieval.catalogue.write import write_catalogue
from retrieval.errors import DataError, ImageUnreadable, InvalidParameter
from retrieval.images import MAX_BYTES
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.ray import Embedding, _line, ray_batches
from retrieval.indexing.worker import embed_batch

from ...world import draw, encode, make_bundle

FILES = {f"shop/photos/{item}/{n}.jpg": encode(draw(int(item[-1]), n)) for item in ("item-1", "item-2") for n in (0, 1)}
MODIFIED = "Sat, 10 Jan 2026 10:00:00 GMT"


class Server(ThreadingHTTPServer):
    """A web server of FILES that also speaks what pyarrow asks of S3: HeadObject, GetObject and ListObjectsV2."""

    asked: list[str]
    sent: list[dict[str, str]]  # headers of the requests
    failures = 0  # answers that fail before one succeeds


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        name, query = parts.path.strip("/"), parse_qs(parts.query)
        self.server.asked.append(self.path)
        self.server.sent.append({name.lower(): value for name, value in self.headers.items()})
        if self.server.failures:
            self.server.failures -= 1
            self.answer(503, b"")
        elif name.startswith("redirect"):
            self.answer(302, b"", Location=query.get("to", ["/redirect"])[0])
        elif name == "large":
            self.answer(200, bytes(MAX_BYTES + 1000))
        elif "list-type" in query:
            self.answer(200, listing(query["prefix"][0]).encode(), **{"Content-Type": "application/xml"})
        elif name in FILES:
            self.answer(200, FILES[name])
        else:
            self.answer(404, b"")

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        first, last = 0, len(body) - 1
        if "Range" in self.headers and status == 200:
            start, _, stop = self.headers["Range"].removeprefix("bytes=").partition("-")
            first, last, status = int(start), min(int(stop or last), last), 206
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        part = body[first : last + 1]
        self.send_response(status)
        for name, value in {
            "Last-Modified": MODIFIED,
            "ETag": '"x"',
            "Content-Length": str(len(part)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


def listing(prefix: str) -> str:
    """Return the answer to ListObjectsV2."""
    keys = [name.removeprefix("shop/") for name in FILES if name.startswith(f"shop/{prefix}")]
    entries = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-10T10:00:00.000Z</LastModified>"
        f"<Size>{len(FILES[f'shop/{key}'])}</Size></Contents>"
        for key in keys
    )
    return (
        f"<ListBucketResult><Name>shop</Name><KeyCount>{len(keys)}</KeyCount><IsTruncated>false</IsTruncated>{entries}"
        "</ListBucketResult>"
    )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked, running.sent = [], []
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setattr(web, "WAIT_S", 0.0)
        yield running
        web._pool().close()
        web._new_pool.cache_clear()
        running.shutdown()


def address(server: Server, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}/{path}"


def photo(url: str) -> RemotePhoto:
    return RemotePhoto("p", Path("p"), "item", url=url)


def test_a_table_of_addresses_is_indexed(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connections.ALLOWED, "127.0.0.1")
    lines = [f"{address(server, name)},{name.split('/')[2]}" for name in FILES]
    (tmp_path / "t.csv").write_text("\n".join(["path,item_id", *lines, f"{address(server, 'none.jpg')},x"]) + "\n")
    photos = read_catalogue(tmp_path / "t.csv")
    assert [each.read() for each in photos[:4]] == list(FILES.values())
    bundle = make_bundle(tmp_path)
    report = index_catalogue(bundle, photos, tmp_path / "g", progress=False)
    assert (report.added, [name for name, _ in report.refused]) == (4, [address(server, "none.jpg")])
    assert "status 404" in report.refused[0][1]
    assert index_catalogue(bundle, photos, tmp_path / "g", progress=False).skipped == 4
    write_catalogue(photos, tmp_path / "again.csv")
    assert [each.photo_id for each in read_catalogue(tmp_path / "again.csv")] == [each.photo_id for each in photos]
    assert read_catalogue(tmp_path / "again.csv")[0].read() == photos[0].read()
    numbered = {"number": np.arange(5), "photo": [_line(each) for each in photos], "known": [""] * 5}
    records = Embedding(str(bundle.path))(numbered)  # what an actor of Ray does
    batch = embed_batch(bundle.embedder(), photos, {})
    assert records["hash"].tolist() == [*batch.hashes, ""]
    assert "status 404" in records["refused"][4]
    with pytest.raises(InvalidParameter, match="engine must be local for photos in memory"):
        next(ray_batches(bundle, [UploadedPhoto("a", Path("a"), "a", content=b"")], {}, batch_size=2))


def test_a_table_lies_beside_its_photos_at_an_address(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(connections.ALLOWED, "127.0.0.1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    stores._file_system.cache_clear()
    rows = "path,item_id,price\nphotos/item-1/0.jpg,one,9.5\n../shop/photos/item-2/1.jpg,two,8\n"
    table = pa.table({"path": ["photos/item-1/0.jpg"], "item_id": ["one"]})
    pq.write_table(table, tmp_path / "t.parquet")
    pq.write_table(pa.table({"image": [b"x"], "label": ["a"]}), tmp_path / "images.parquet")
    files = {"shop/t.csv": rows.encode(), "shop/broken.csv": b"path,name\na,b\n"}
    files |= {f"shop/{name}": (tmp_path / name).read_bytes() for name in ("t.parquet", "images.parquet")}
    for name, content in files.items():
        monkeypatch.setitem(FILES, name, content)
    first, last = FILES["shop/photos/item-1/0.jpg"], FILES["shop/photos/item-2/1.jpg"]
    for place in ("s3://shop/t.csv", address(server, "shop/t.csv?key=secret")):
        photos = read_catalogue(place)
        assert [(each.item_id, each.metadata, each.read()) for each in photos] == [
            ("one", {"price": 9.5}, first),
            ("two", {"price": 8}, last),
        ]
        assert photos[0].photo_id == "photos/item-1/0.jpg"
    assert [each.read() for each in read_catalogue("s3://shop/t.parquet")] == [first]
    monkeypatch.setitem(FILES, "shop/local.csv", b"path,item_id\n/etc/secret.jpg,one\n")
    with pytest.raises(DataError, match=r"shop/local.csv names the file /etc/secret.jpg of this machine"):
        read_catalogue(address(server, "shop/local.csv"))
    with pytest.raises(DataError, match=r"^s3://shop/broken.csv has the columns"):
        read_catalogue("s3://shop/broken.csv")
    with pytest.raises(DataError, match=r"s3://shop/images.parquet contains the photos themselves. Copy it"):
        read_catalogue("s3://shop/images.parquet")
    with pytest.raises(DataError, match=r"s3://shop/none.csv cannot be read"):
        read_catalogue("s3://shop/none.csv")
    stores._file_system.cache_clear()


def test_a_container_on_azure_needs_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in stores.ACCOUNT:
        monkeypatch.delenv(name, raising=False)
    assert stores._with_account("c@shop.dfs.core.windows.net") == "c@shop.dfs.core.windows.net"
    with pytest.raises(OSError, match="name the account: c@ACCOUNT"):
        stores._with_account("c")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "shop")
    assert stores._with_account("c") == "c@shop.dfs.core.windows.net"


def test_a_server_that_fails_is_asked_three_times(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connections.ALLOWED, "127.0.0.1")
    name, data = next(iter(FILES.items()))
    server.failures = 2
    assert photo(address(server, name)).read() == data
    server.failures = 3
    with pytest.raises(ImageUnreadable, match="status 503"):
        photo(address(server, name)).read()
    assert len(server.asked) == 6
    with pytest.raises(ImageUnreadable, match="status 404"):
        photo(address(server, "none")).read()
    assert len(server.asked) == 7


def test_no_more_than_the_limit_is_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connections.ALLOWED, "127.0.0.1")
    assert len(photo(address(server, "large")).read()) == MAX_BYTES + 1
    monkeypatch.setattr(web, "TOTAL_S", -1.0)
    with pytest.raises(ImageUnreadable, match="longer than"):
        photo(address(server, next(iter(FILES)))).read()


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/a.jpg",
        "https://localhost/a.jpg",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/a.jpg",
        "https://[::1]/a.jpg",
        "https://[::ffff:127.0.0.1]/a.jpg",
        "https://0.0.0.0/a.jpg",
        "https://2130706433/a.jpg",
        "https://[64:ff9b::7f00:1]/a.jpg",
    ],
)
def test_private_addresses_are_not_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(connections.ALLOWED, raising=False)
    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", lambda *_: pytest.fail("it was asked"))
    with pytest.raises(ImageUnreadable, match="has a private address"):
        photo(url).read()


def test_a_name_with_one_private_address_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(2, 1, 6, "", (ip, 443)) for ip in ("8.8.8.8", "192.168.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    with pytest.raises(ImageUnreadable, match="has a private address"):
        photo("https://example.org/a.jpg").read()
    with pytest.raises(ImageUnreadable, match="is not an https address"):
        photo("http://example.org/a.jpg").read()


def test_the_time_of_a_photo_includes_the_lookup_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def find(*_: object, **__: object) -> list[object]:
        answered.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(web, "TOTAL_S", 0.1)
    with pytest.raises(ImageUnreadable, match="takes longer than"):
        photo("https://example.org/a.jpg").read()
    answered.set()


def test_a_redirect_is_followed_only_to_where_a_photo_may_be(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connections.ALLOWED, "127.0.0.1")
    name, data = next(iter(FILES.items()))
    assert photo(address(server, f"redirect?to=/{name}")).read() == data
    with pytest.raises(ImageUnreadable, match="has a private address"):
        photo(address(server, "redirect?to=https://localhost/a.jpg")).read()
    with pytest.raises(ImageUnreadable, match="is not an https address"):
        photo(address(server, f"redirect?to=http://localhost:{server.server_port}/{name}")).read()
    with pytest.raises(ImageUnreadable, match="redirects more than 3 times"):
        photo(address(server, "redirect")).read()


def test_a_folder_on_s3_is_a_catalogue(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": address(server, "").rstrip("/"),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    stores._file_system.cache_clear()
    photos = read_catalogue("s3://shop/photos")
    assert [(each.photo_id, each.item_id) for each in photos] == [
        (f"{item}/{n}.jpg", item) for item in ("item-1", "item-2") for n in (0, 1)
    ]
    assert [each.read() for each in photos] == list(FILES.values())
    assert photos[0].state().startswith(f"{len(next(iter(FILES.values())))} ")
    bundle = make_bundle(tmp_path)
    assert index_catalogue(bundle, photos, tmp_path / "g", progress=False).added == 4
    server.asked.clear()
    assert index_catalogue(bundle, photos, tmp_path / "g", progress=False).skipped == 4
    assert server.asked == []  # size and time are those of the listing
    with pytest.raises(ImageUnreadable, match="cannot be read"):
        photo("s3://shop/photos/none.jpg").read()
    monkeypatch.setitem(FILES, "shop/photos/loose.jpg", b"x")
    with pytest.raises(DataError, match="what is an item is unclear"):
        read_catalogue("s3://shop/photos")
    stores._file_system.cache_clear()


def test_photos_at_addresses_are_read_together(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connections.ALLOWED, "127.0.0.1")
    together = threading.Barrier(4, timeout=60)  # broken if fewer than four are read at a time
    read = RemotePhoto.read

    def waiting(self: RemotePhoto) -> bytes:
        together.wait()
        return read(self)

    monkeypatch.setattr(RemotePhoto, "read", waiting)
    assert list(contents([photo(address(server, name)) for name in FILES])) == list(FILES.values())


def test_what_is_an_address() -> None:
    assert all(map(is_url, ("https://a/b.jpg", "s3://a/b", "gs://a/b", "abfss://c@a/b", "az://c/b", "HTTPS://a/b")))
    assert not any(map(is_url, ("a/b.jpg", "/a/b", "file:///etc/passwd", "ftp://a/b", Path("s3:/a"), None, "s3:/a")))
    assert Photo("p", Path("a"), "x").state() == ""


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::8.8.8.8", True),
        ("64:ff9b::10.0.0.1", False),
        ("64:ff9b::169.254.169.254", False),
        ("2002:7f00:1::", False),
        ("::127.0.0.1", False),
        ("::8.8.8.8", False),
        ("::ffff:0:7f00:1", False),
        ("::ffff:10.0.0.1", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("5f00::1", False),
        ("ff02::1", False),
        ("168.63.129.16", False),
        ("::ffff:168.63.129.16", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert connections.is_public(address) == public


def test_hosts_at_one_address_share_neither_connections_nor_cookies(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(connections.ALLOWED, "one.test,two.test")
    find, opened = socket.getaddrinfo, []
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest, **named: find("127.0.0.1", *rest, **named))
    connect = connections.PublicBackend.connect_tcp

    def noted(self: connections.PublicBackend, host: str, *rest: Any, **named: Any) -> Any:
        opened.append(host)
        return connect(self, host, *rest, **named)

    monkeypatch.setattr(connections.PublicBackend, "connect_tcp", noted)
    monkeypatch.setattr(connections, "KEPT_S", 600.0)
    web._new_pool.cache_clear()
    name, data = next(iter(FILES.items()))
    for host in ("one.test", "one.test", "user:pw@two.test"):
        assert photo(f"http://{host}:{server.server_port}/{name}").read() == data
    assert opened == ["one.test", "two.test"]
    assert [sent["host"].partition(":")[0] for sent in server.sent] == ["one.test", "one.test", "two.test"]
    assert [sent.get("authorization") for sent in server.sent] == [None, None, "Basic dXNlcjpwdw=="]
    assert all("cookie" not in sent for sent in server.sent)


def test_a_server_that_sends_headers_slowly_is_left_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connections.ALLOWED, "127.0.0.1")
    clock = iter(range(10_000))  # a second passes at each look
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    left = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not left.wait(0.001):
                    connection.sendall(b"x: 1\r\n")
            except OSError:
                left.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        with pytest.raises(ImageUnreadable, match="longer than 60 seconds"):
            photo(f"http://127.0.0.1:{listener.getsockname()[1]}/a.jpg").read()
        left.set()
        thread.join()


def test_an_address_that_no_store_can_have_is_a_refused_photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(stores, "_file_system", lambda *_: (fs.LocalFileSystem(), str(tmp_path)))
    for url in ("s3://[b/x.jpg", "s3://b/a\0b.jpg"):
        with pytest.raises(ImageUnreadable, match="cannot be read"):
            photo(url).read()


def test_the_name_of_an_object_may_hold_any_character(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_file_system", lambda *_: (fs.LocalFileSystem(), str(tmp_path)))
    (tmp_path / "item").mkdir()
    for name in ("a#1.jpg", "a?1.jpg", "a.jpg"):
        (tmp_path / "item" / name).write_text(name)
        assert photo(f"s3://b/item/{name}").read().decode() == name
    photos = read_catalogue("s3://b")
    assert [each.read().decode() for each in photos] == [each.photo_id.removeprefix("item/") for each in photos]


def test_messages_hold_no_secrets(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connections.ALLOWED, "127.0.0.1")
    monkeypatch.setattr(stores, "_file_system", lambda *_: (fs.LocalFileSystem(), str(tmp_path)))
    here = f"user:word@127.0.0.1:{server.server_port}"
    for url in (
        f"http://{here}/none?sig=TOKEN",
        f"http://{here}/redirect?sig=TOKEN",
        f"http://{here}/redirect?to=http://user:word@localhost/a%3Fsig=TOKEN",
        "https://user:word@localhost/a?sig=TOKEN",
        "S3://user:word@bucket/none.jpg?sig=TOKEN",
    ):
        with pytest.raises(ImageUnreadable) as caught:
            photo(url).read()
        assert "word" not in str(caught.value), url
        assert "TOKEN" not in str(caught.value), url


@pytest.mark.slow
def test_azure_without_credentials_refuses_a_photo(tmp_path: Path) -> None:
    """The process goes on: in a process of its own, because pyarrow would end it."""
    code = (
        "from pathlib import Path\n"
        "from retrieval.catalogue.remote import RemotePhoto\n"
        "from retrieval.errors import ImageUnreadable\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        RemotePhoto('a', Path('a'), 'a', url='abfs://c@account.dfs.core.windows.net/x.jpg').read()\n"
        "    except ImageUnreadable as error:\n"
        "        print(error)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # closed below: no identity is served here
    environment = {
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "IDENTITY_ENDPOINT": f"http://127.0.0.1:{port}/",
        "IDENTITY_HEADER": "x",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("check the credentials for Azure") == 2
