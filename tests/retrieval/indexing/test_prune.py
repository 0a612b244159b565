"""A source that lacks most photos of a gallery does not empty it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter, PruneRefused
from retrieval.indexing.pipeline import IndexReport, index_catalogue
from retrieval.indexing.plan import SyncSettings

from ...world import make_bundle, write_folder

BAD = b"\xff\xd8\xffno image"


class Shop(NamedTuple):
    """A gallery of ten photos of five items."""

    bundle: Bundle
    photos: Path
    gallery: Path

    def sync(self, photos: list[Photo], at_most: float = 0.5, **settings: dict[str, str]) -> IndexReport:
        sync = SyncSettings(prune=True, prune_at_most=at_most, **settings)  # type: ignore[arg-type]
        return index_catalogue(self.bundle, photos, self.gallery, progress=False, sync=sync)

    def run(self, photos: Path, *words: str) -> Result:
        return CliRunner().invoke(
            group, ["index", str(self.bundle.path), str(photos), "-o", str(self.gallery), "--prune", *words]
        )

    def version(self) -> tuple[int, int]:
        with Gallery.open(self.gallery, read_only=True) as gallery:
            return len(gallery), gallery.version


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    bundle = make_bundle(tmp_path)
    photos = write_folder(tmp_path / "photos", items=range(5), photos=range(2))
    index_catalogue(bundle, read_catalogue(photos), tmp_path / "gallery", progress=False)
    return Shop(bundle, photos, tmp_path / "gallery")


def test_more_than_half_of_a_gallery_is_not_removed(shop: Shop) -> None:
    before, photos = shop.version(), read_catalogue(shop.photos)
    told = (
        r"--prune would remove 6 of the gallery's 10 photos \(item-02/0.png, item-02/1.png, item-03/0.png, …\), more "
        r"than the share of 0.5 that it may remove. Check that the source is complete. If it is, add "
        r"--prune-at-most 0.6 \(over HTTP and in Python: prune_at_most\)"
    )
    with pytest.raises(PruneRefused, match=told):
        shop.sync(photos[:4], columns={"brand": "text"})
    assert shop.version() == before
    assert shop.sync(photos[:4], 0.6).removed == 6
    assert shop.version()[0] == 4
    assert shop.sync(photos[:2]).removed == 2  # half of it


def test_a_folder_of_an_item_is_not_the_catalogue(shop: Shop) -> None:
    before = shop.version()
    for words in ((), ("--dry-run",)):
        told = shop.run(shop.photos / "item-00", *words)
        assert isinstance(told.exception, PruneRefused)
        assert "would remove 10 of the gallery's 10 photos" in str(told.exception)
        assert "--prune-at-most 1 " in str(told.exception)
        assert ("10 photos of the gallery, not in the catalogue" in told.output) == bool(words)
    assert shop.version() == before


def test_a_source_that_is_refused_removes_nothing(shop: Shop, tmp_path: Path) -> None:
    before = shop.version()
    (tmp_path / "bad" / "x").mkdir(parents=True)
    (tmp_path / "bad" / "x" / "a.jpg").write_bytes(BAD)
    report = shop.sync(read_catalogue(tmp_path / "bad"), 1)
    assert (report.removed, len(report.gone), len(report.refused)) == (0, 10, 1)
    told = shop.run(tmp_path / "bad", "--prune-at-most", "1")
    assert told.exit_code == 1
    assert "Nothing was added: every photo was refused." in told.output
    with pytest.raises(PruneRefused, match="and keep none"):
        shop.sync([], 1)
    assert shop.version() == before


def test_a_gallery_is_replaced_on_request(shop: Shop, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "other", items=range(6, 8), photos=range(1))
    told = shop.run(other, "--prune-at-most", "1")
    assert told.exit_code == 0, told.output
    assert "2 photos added" in told.output
    assert "10 removed" in told.output
    assert shop.version()[0] == 2


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_the_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(InvalidParameter, match="prune_at_most must be between 0 and 1"):
        SyncSettings(prune_at_most=share)
