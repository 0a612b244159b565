"""Photos at addresses: real servers in this process, and the addresses that are never asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest

from retrieval.catalogue import remote, web
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.remote import RemotePhoto, is_url
from retrieval.catalogue.write import write_catalogue
from retrieval.errors import DataError, ImageUnreadable, InvalidParameter
from retrieval.images import MAX_BYTES
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.ray import ray_batches
from retrieval.indexing.worker import contents

from ...world import draw, encode, make_bundle

FILES = {f"shop/photos/{item}/{n}.jpg": encode(draw(int(item[-1]), n)) for item in ("item-1", "item-2") for n in (0, 1)}
MODIFIED = "Sat, 10 Jan 2026 10:00:00 GMT"


class Server(ThreadingHTTPServer):
    """A web server of FILES that also speaks what pyarrow asks of S3: HeadObject, GetObject and ListObjectsV2."""

    asked: list[str]
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
        running.asked = []
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setattr(web, "WAIT_S", 0.0)
        yield running
        running.shutdown()


def address(server: Server, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}/{path}"


def photo(url: str) -> RemotePhoto:
    return RemotePhoto("p", Path("p"), "item", url=url)


def test_a_table_of_addresses_is_indexed(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(web.ALLOWED, "127.0.0.1")
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
    with pytest.raises(InvalidParameter, match="engine must be local"):
        next(ray_batches(bundle, photos, {}, batch_size=2))


def test_a_server_that_fails_is_asked_three_times(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(web.ALLOWED, "127.0.0.1")
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
    monkeypatch.setenv(web.ALLOWED, "127.0.0.1")
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
    ],
)
def test_private_addresses_are_not_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(web.ALLOWED, raising=False)
    monkeypatch.setattr(web, "_client", lambda: pytest.fail("it was asked"))
    with pytest.raises(ImageUnreadable, match="has a private address"):
        photo(url).read()


def test_a_name_with_one_private_address_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(2, 1, 6, "", (ip, 443)) for ip in ("8.8.8.8", "192.168.0.1")]
    monkeypatch.setattr(web.socket, "getaddrinfo", lambda *_, **__: entries)
    with pytest.raises(ImageUnreadable, match="has a private address"):
        photo("https://example.org/a.jpg").read()
    with pytest.raises(ImageUnreadable, match="is not an https address"):
        photo("http://example.org/a.jpg").read()


def test_a_redirect_is_followed_only_to_where_a_photo_may_be(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(web.ALLOWED, "127.0.0.1")
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
    remote._file_system.cache_clear()
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
    remote._file_system.cache_clear()


def test_photos_at_addresses_are_read_together(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(web.ALLOWED, "127.0.0.1")
    together = threading.Barrier(4, timeout=60)  # broken if fewer than four are read at a time
    read = RemotePhoto.read

    def waiting(self: RemotePhoto) -> bytes:
        together.wait()
        return read(self)

    monkeypatch.setattr(RemotePhoto, "read", waiting)
    assert list(contents([photo(address(server, name)) for name in FILES])) == list(FILES.values())


def test_what_is_an_address() -> None:
    assert all(map(is_url, ("https://a/b.jpg", "s3://a/b", "gs://a/b", "abfss://c@a/b", "HTTPS://a/b")))
    assert not any(map(is_url, ("a/b.jpg", "/a/b", "file:///etc/passwd", "ftp://a/b", Path("s3:/a"), None, "s3:/a")))
    assert Photo("p", Path("a"), "x").state() == ""
