"""Photos at addresses, on a store in memory: what is read, and what no table may name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from retrieval.bundle.bundle import Bundle
from retrieval.catalogue import remote as remote_photos
from retrieval.catalogue.photos import UNLABELLED
from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.remote import ALLOWED, RemotePhoto, check_allowed, is_url, shown
from retrieval.catalogue.tables import write_catalogue
from retrieval.errors import DataError, ImageTooLarge, ImageUnreadable, MissingDependency
from retrieval.images import MAX_BYTES
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.ray import Embedding, _line
from retrieval.indexing.worker import embed_batch

from ...world import draw, encode, make_bundle

SHOP = "memory://shop"
FILES = {f"photos/{item}/{n}.jpg": encode(draw(int(item[-1]), n)) for item in ("item-1", "item-2") for n in (0, 1)}


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make `memory://` an address, with FILES in its folder `shop`."""
    monkeypatch.setattr(remote_photos, "SCHEMES", (*remote_photos.SCHEMES, "memory"))
    monkeypatch.delenv(ALLOWED, raising=False)
    system = fsspec.filesystem("memory")
    for name, data in FILES.items():
        system.pipe(f"/shop/{name}", data)
    yield system
    system.rm("/shop", recursive=True)


def table(folder: Path, *urls: str) -> Path:
    lines = [f"{number},{url},item-1" for number, url in enumerate(urls)]
    (folder / "photos.csv").write_text("\n".join(["photo_id,path,item_id", *lines]) + "\n")
    return folder / "photos.csv"


def test_a_folder_on_a_store_is_a_catalogue_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    photos = read_catalogue(f"{SHOP}/photos")
    assert [(photo.photo_id, photo.item_id) for photo in photos] == [(n[7:], n[7:13]) for n in sorted(FILES)]
    assert [photo.read() for photo in photos] == [FILES[name] for name in sorted(FILES)]
    assert all(photo.state() for photo in photos)
    bundle = make_bundle(tmp_path)
    assert index_catalogue(bundle, photos, tmp_path / "g", progress=False).added == 4
    assert index_catalogue(bundle, read_catalogue(f"{SHOP}/photos"), tmp_path / "g", progress=False).skipped == 4


def test_a_folder_on_a_store_has_the_rules_of_a_local_one(store: Any) -> None:
    store.pipe("/shop/photos/cover.jpg", FILES["photos/item-1/0.jpg"])
    with pytest.raises(DataError, match="what is an item is unclear"):
        read_catalogue(f"{SHOP}/photos")
    photos = read_catalogue(f"{SHOP}/photos", labels=UNLABELLED)
    assert {photo.item_id for photo in photos} == {""}
    assert len(photos) == 5


def test_a_table_reads_addresses_below_an_allowed_prefix_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = table(tmp_path, *(f"{SHOP}/{name}" for name in FILES))
    with pytest.raises(DataError, match="is not below an allowed prefix") as refused:
        read_catalogue(place)
    assert [f"line {line}: " in refused.value.message for line in range(1, len(FILES) + 3)] == [
        False,
        *[True] * len(FILES),
        False,
    ]
    assert f"retrieval --allow {SHOP}/photos/item-1/ ..." in refused.value.remedy
    monkeypatch.setenv(ALLOWED, f"https://example.org/ {SHOP}/photos")
    photos = read_catalogue(place)
    assert [photo.read() for photo in photos] == list(FILES.values())
    written = write_catalogue(photos, tmp_path / "again.csv")
    assert [photo.url for photo in read_catalogue(written) if isinstance(photo, RemotePhoto)] == [
        f"{SHOP}/{name}" for name in FILES
    ]


@pytest.mark.parametrize(
    "url",
    [
        "https://shop.example/photos-of-others/a.jpg",
        "https://shop.example@192.0.2.1/photos/a.jpg",
        "https://shop.example.org/photos/a.jpg",
        "http://shop.example/photos/a.jpg",
        "https://shop.example/photos/../secret.jpg",
        "https://shop.example/photos/%2e%2e/secret.jpg",
        "https://shop.example/photos/..\\secret.jpg",
        "simplecache::https://shop.example/photos/a.jpg",
        "https://shop.example/photos/a.zip::file:///etc/passwd",
    ],
)
def test_an_address_that_only_resembles_an_allowed_one_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "https://shop.example/photos")
    check_allowed("https://shop.example/photos/a.jpg", 2)
    with pytest.raises(DataError, match="not below an allowed prefix"):
        check_allowed(url, 2)


@pytest.mark.parametrize(
    "url", ["gs://b?endpoint_override=evil.example/a.jpg", "gs://b%3Fscheme=http/a.jpg", "s3://b#x/a.jpg"]
)
def test_options_before_the_first_slash_are_refused_whatever_is_allowed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option for the endpoint sends the operator's credentials to any host."""
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda *_, **__: pytest.fail("the store was asked"))
    monkeypatch.setenv(ALLOWED, "gs:// s3:// gs://b s3://b")
    check_allowed("gs://b/a.jpg", 2)
    with pytest.raises(DataError, match="not below an allowed prefix"):
        check_allowed(url, 2)
    with pytest.raises(ImageUnreadable, match="options before its first /"):
        RemotePhoto("a", Path("a"), "item", url=url).read()
    with pytest.raises(DataError, match="options before its first /"):
        read_catalogue(url.removesuffix("/a.jpg"))


def test_no_redirect_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect could lead from an allowed host to any other, such as one in the operator's own network."""
    asked: list[dict[str, Any]] = []

    def url_to_fs(url: str, **options: Any) -> tuple[Any, str]:
        asked.append(options)
        raise OSError(f"no answer from {url}")

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    for url in ("https://shop.example/a.jpg", "s3://shop/a.jpg"):
        with pytest.raises(ImageUnreadable):
            RemotePhoto("a", Path("a"), "item", url=url).read()
    assert asked == [{"allow_redirects": False}, {}]


def test_what_is_an_address() -> None:
    assert all(map(is_url, ("https://a/b.jpg", "s3://a/b", "gs://a/b", "az://a/b", "S3://a/b")))
    for place in ("a.jpg", "file:///etc/passwd", "http://a/b.jpg", "ftp://a/b", "local:///x", "s3:/a", Path("s3://a")):
        assert not is_url(place)


def test_a_table_at_an_address_is_refused() -> None:
    with pytest.raises(DataError, match="is a table at an address") as refused:
        read_catalogue("https://shop.example/photos.csv?key=secret")
    assert "secret" not in str(refused.value)
    assert refused.value.remedy == "Copy it to this machine"


def test_a_missing_photo_is_refused_and_the_others_are_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, SHOP)
    place = table(tmp_path, f"{SHOP}/photos/item-1/0.jpg", f"{SHOP}/none.jpg")
    report = index_catalogue(make_bundle(tmp_path), read_catalogue(place), tmp_path / "g", progress=False)
    assert (report.added, [photo_id for photo_id, _ in report.refused]) == (1, ["1"])
    assert "memory://shop/none.jpg cannot be read" in report.refused[0][1]


def test_no_more_than_the_limit_is_read(store: Any) -> None:
    store.pipe("/shop/large.jpg", bytes(MAX_BYTES + 1000))
    photo = RemotePhoto("a", Path("a"), "item", url=f"{SHOP}/large.jpg")
    with pytest.raises(ImageTooLarge, match=f"large.jpg has {MAX_BYTES + 1000:,} bytes"):
        photo.read()


def test_a_store_whose_package_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(MissingDependency, match="az addresses need a package that cannot be imported"):
        RemotePhoto("a", Path("a"), "item", url="az://container/a.jpg").read()


def test_messages_hold_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://user:password@shop.example/a.jpg?token=secret#part"
    assert shown(url) == "https://shop.example/a.jpg"

    def fail(url: str) -> tuple[Any, str]:
        raise OSError(f"no answer from {url}")

    monkeypatch.setattr(remote_photos, "_system", fail)
    with pytest.raises(ImageUnreadable) as refused:
        RemotePhoto("a", Path("a"), "item", url=url).read()
    for secret in ("password", "secret"):
        assert secret not in str(refused.value)


def test_an_actor_of_ray_reads_addresses_too(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    photos = read_catalogue(f"{SHOP}/photos")
    lines = {"number": [0, 1], "photo": [_line(photo) for photo in photos[:2]], "known": ["", ""]}
    records = Embedding(str(bundle.path))(lines)
    batch = embed_batch(Bundle.open(bundle.path).embedder(threads=1), photos[:2], {})
    assert batch.vectors is not None
    assert np.array_equal(np.frombuffer(b"".join(records["vector"]), np.float32).reshape(2, -1), batch.vectors)
