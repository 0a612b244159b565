"""Photos that decide nothing: one that several items share, and one whose JPEG is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from index.location import open_gallery
from index.search.distance import Rows
from index.snapshot import Snapshot
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.check import check_catalogue
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.cli.search import lines
from retrieval.indexing.pipeline import index_catalogue
from retrieval.inspect.audit import audit
from retrieval.inspect.duplicates import shared_photos
from retrieval.retriever import Retriever

from ..world import draw, encode, make_bundle, write_folder

SHARING = [f"new-{number}" for number in range(4)]
SHOWN = draw(70, 0)


def resaved(image: Image.Image, side: int) -> bytes:
    """Return the picture at another size."""
    return encode(image.resize((side, side)))


def damaged(image: Image.Image) -> bytes:
    """Return a JPEG that has lost a block."""
    data = encode(image.resize((160, 160)))
    at = 2 * len(data) // 3
    return data[:at] + bytes(200) + data[at + 200 :]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder with a bundle, photos of items with own photos and of items that share one, and a gallery."""
    photos = write_folder(tmp_path / "photos", items=range(30))
    for item in SHARING:
        (photos / item).mkdir()
        (photos / item / "0.jpg").write_bytes(encode(SHOWN))
    next(photos.glob("*/*")).with_suffix(".jpg").write_bytes(damaged(draw(0, 9)))
    index_catalogue(make_bundle(tmp_path), read_catalogue(photos), tmp_path / "g", progress=False)
    return tmp_path


def test_index_names_a_shared_photo_with_its_items_on_one_line(folder: Path) -> None:
    done = CliRunner().invoke(group, ["index", str(folder / "bundle"), str(folder / "photos"), "-o", str(folder / "g")])
    assert "1 photo that several items share" in done.output
    assert "  new-0, new-1, new-2, new-3: new-0/0.jpg" in done.output.splitlines()


def test_copies_that_were_saved_again_and_the_same_file_are_one_shared_photo(folder: Path) -> None:
    with open_gallery(folder / "g", read_only=True) as gallery:
        first, item, _ = next(iter(gallery.photos()))
        pairs = [("new-3/0.jpg", first), (first, "")]
        assert [items for _, items in shared_photos(gallery, pairs)] == [sorted([item, *SHARING])]


def test_a_search_that_finds_a_shared_photo_asks_and_never_matches(folder: Path) -> None:
    with Retriever.open(folder / "bundle", folder / "g") as retriever:
        answer = retriever.search(resaved(SHOWN, 100))
        assert (answer.decision, answer.reason, answer.matches) == ("perhaps", "shared_photo", ())
        assert sorted(match.item_id for match in answer.review[:4]) == SHARING
        assert len(retriever.search(encode(SHOWN), top_k=1).review) > 1
        assert any("have the same photo" in line for line in lines(answer, filtered=False))
        assert retriever.search(encode(draw(3, 0))).decision == "match"


def test_a_photo_that_is_changed_during_the_search_still_shares_its_picture(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Retriever.open(folder / "bundle", folder / "g") as retriever,
        open_gallery(folder / "g", read_only=False) as writer,
    ):
        positions = Snapshot.positions

        def changed_before(now: Snapshot, photo_ids: Sequence[str]) -> Rows:
            for item in SHARING:
                writer.update([f"{item}/0.jpg"], [item], [{"price": 5}])
            return positions(now, photo_ids)

        monkeypatch.setattr(Snapshot, "positions", changed_before)
        answer = retriever.search(resaved(SHOWN, 100))
        assert (answer.decision, answer.reason, answer.matches) == ("perhaps", "shared_photo", ())


def test_a_damaged_photo_is_searched_with_a_word_and_never_matches(folder: Path) -> None:
    with Retriever.open(folder / "bundle", folder / "g") as retriever:
        answer = retriever.search(damaged(draw(3, 0)))
        assert (answer.reason, answer.matches) == ("damaged_photo", ())
        assert any("the photo is damaged" in line for line in lines(answer, filtered=False))


def test_data_check_index_and_audit_name_a_damaged_photo(folder: Path) -> None:
    photos = read_catalogue(folder / "photos")
    checked = check_catalogue(photos, progress=False)
    assert len(checked.damaged) == 1
    assert checked.usable
    bundle = Bundle.open(folder / "bundle")
    report = index_catalogue(bundle, photos, folder / "again", progress=False)
    assert (report.damaged, report.refused) == (checked.damaged, [])
    with Retriever.open(folder / "bundle", folder / "g") as retriever:
        assert [photo for _, photo in audit(bundle, retriever.gallery).damaged] == checked.damaged


@pytest.mark.parametrize("saved_again", [False, True])
def test_a_photo_of_one_colour_that_several_items_share_asks_and_leaves_the_gallery_a_threshold(
    tmp_path: Path, saved_again: bool
) -> None:
    photos = write_folder(tmp_path / "photos", items=range(30))
    for number, item in enumerate(SHARING):
        (photos / item).mkdir()
        Image.new("RGB", (64 + 4 * number * saved_again, 64), (200, 200, 200)).save(photos / item / "0.png")
    index_catalogue(make_bundle(tmp_path), read_catalogue(photos), tmp_path / "g", progress=False)
    with Retriever.open(tmp_path / "bundle", tmp_path / "g") as retriever:
        answer = retriever.search(photos / SHARING[0] / "0.png")
        assert (answer.decision, answer.reason) == ("perhaps", "shared_photo")
