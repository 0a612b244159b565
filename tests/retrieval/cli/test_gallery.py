"""`retrieval gallery ...` and `retrieval index` with filters and kinds, as a user meets them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from index.database import POINT
from index.gallery import Gallery
from retrieval.catalogue.read import Photo
from retrieval.cli.main import group, main
from retrieval.errors import DataError, GalleryCorrupt, GalleryError, InvalidParameter
from retrieval.indexing.pipeline import columns_of
from retrieval.inspect.doctor import examine
from retrieval.retriever import Retriever

from ...gallery_contents import contents
from ...world import draw, make_bundle


def call(*words: object) -> Result:
    result = CliRunner().invoke(group, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a folder with a bundle, and a gallery of a CSV with brands and prices."""
    make_bundle(tmp_path)
    lines = ["path,item_id,brand,price,mixed"]
    for item in range(6):
        for number in range(2):
            draw(item, number).save(tmp_path / f"{item}-{number}.png")
            lines.append(f"{item}-{number}.png,item-{item},{'ab'[item % 2]},{item},{item}")
    (tmp_path / "photos.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "broken.png").write_bytes(b"no image")
    with (tmp_path / "photos.csv").open("a") as file:
        file.write("broken.png,item-9,a,9,9\n")
    result = call(
        "index", tmp_path / "bundle", tmp_path / "photos.csv", "-o", tmp_path / "g", "--report", tmp_path / "r.json"
    )
    assert re.search(r"12 photos added in \d+ s, 1 refused\.", result.output)
    return tmp_path


def test_indexing_reports_and_declares(shop: Path) -> None:
    report = json.loads((shop / "r.json").read_text())
    assert report["added"] == 12
    assert report["refused"][0]["photo_id"] == "broken.png"
    assert "not a" in report["refused"][0]["reason"]
    told = call("gallery", "info", shop / "g").output
    assert "12 photos of 6 items" in told
    assert "Index: flat; about 0 MiB in memory" in told
    assert "it is exact; all photos are scanned." in told
    assert "brand (text)" in told
    again = call("index", shop / "bundle", shop / "photos.csv", "-o", shop / "g").output
    assert "0 photos added, 12 already there, 1 refused." in again
    assert "Index: flat; about 0 MiB in memory" in again


def test_a_filter_narrows_the_answer(shop: Path) -> None:
    words = ("search", shop / "bundle", shop / "g", shop / "3-0.png", "--json")
    assert json.loads(call(*words).output)["matches"][0]["item_id"] == "item-3"
    matches = json.loads(call(*words, "--where", "brand = 'a'").output)["matches"]
    assert "item-3" not in {match["item_id"] for match in matches}
    assert "no photo passes the filter" in call(*words[:-1], "--where", "brand = 'c'").output
    with pytest.raises(InvalidParameter, match="declared columns"):
        call(*words, "--where", "size = 1")


def test_a_run_that_refuses_every_photo_leaves_no_gallery_and_no_other_is_removed(shop: Path) -> None:
    (shop / "bad" / "item").mkdir(parents=True)
    (shop / "bad" / "item" / "x.jpg").write_bytes(b"no image")
    for place, kept in ((shop / "new", False), (shop / "g", True)):
        result = call("index", shop / "bundle", shop / "bad", "-o", place)
        assert (result.exit_code, place.exists()) == (1, kept)
        assert "every photo was refused" in result.output
        assert "Wrote" not in result.output
    with Gallery.open(shop / "g", read_only=True) as gallery:
        assert (len(gallery), gallery.verify()) == (12, [])


def test_ids_that_are_not_there_are_named_and_the_others_removed(shop: Path) -> None:
    ids = "--photo 9-9.png --photo 0-0.png --item item-77 --item item-3"
    with pytest.raises(GalleryError, match=r"g has no photo or item 9-9\.png, item-77") as caught:
        call("gallery", "remove", shop / "g", *ids.split())
    assert caught.value.remedy == "Check the ids"
    with Gallery.open(shop / "g", read_only=True) as gallery:
        assert len(gallery) == 9
        assert gallery.photo("0-0.png") is None
        assert gallery.photos("item-3") == []
        version = gallery.version
    with pytest.raises(GalleryError, match="has no photo or item item-3"):
        call("gallery", "remove", shop / "g", "--item", "item-3")
    with Gallery.open(shop / "g", read_only=True) as gallery:
        assert gallery.version == version


def test_photos_and_items_are_removed_and_the_log_tells(shop: Path) -> None:
    assert "1 photo removed" in call("gallery", "remove", shop / "g", "--photo", "0-0.png").output
    assert "2 photos removed" in call("gallery", "remove", shop / "g", "--item", "item-3").output
    rebuilt = call("gallery", "rebuild", shop / "g", "--bundle", shop / "bundle", "--kind", "fp16").output
    assert "Index: fp16, chosen by hand" in rebuilt
    assert "it is exact" in rebuilt
    assert "Dropped 3 vectors of removed photos." in rebuilt
    log = call("gallery", "log", shop / "g", "--limit", 3).output.splitlines()
    assert [" ".join(line.split()[3:]) for line in log] == [
        "rebuild as fp16 9 photos",
        "remove 2 photos",
        "remove 1 photo",
    ]
    assert "9 photos are intact" in call("gallery", "verify", shop / "g").output
    with pytest.raises(InvalidParameter, match="--photo or --item"):
        call("gallery", "remove", shop / "g")


def test_an_approximate_index_says_what_it_loses(shop: Path) -> None:
    told = call("gallery", "rebuild", shop / "g", "--bundle", shop / "bundle", "--kind", "ivf", "--max-memory", "2GiB")
    assert "recall 1.0000 (at least 0." in told.output
    assert "recall 1.0000" in call("gallery", "info", shop / "g").output
    with pytest.raises(InvalidParameter, match="min_recall must be between 0 and 1, got nan"):
        call("gallery", "rebuild", shop / "g", "--min-recall", "nan")
    assert "is not an amount of memory" in call("gallery", "rebuild", shop / "g", "--max-memory", "9" * 400).output


def test_verify_fails_loudly(shop: Path) -> None:
    file = next((shop / "g" / "segments").glob("*.npy"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    result = call("gallery", "verify", shop / "g")
    assert result.exit_code == 1
    assert "BAD  segment" in result.output


def test_export_and_import_keep_everything(shop: Path) -> None:
    call("gallery", "remove", shop / "g", "--photo", "0-0.png")
    assert "11 photos" in call("gallery", "export", shop / "g", shop / "backup").output
    assert "11 photos" in call("gallery", "import", shop / "backup", shop / "copy").output
    with Gallery.open(shop / "g") as one, Gallery.open(shop / "copy") as other:
        for mine, theirs in zip(contents(one), contents(other), strict=True):
            assert np.array_equal(mine, theirs)
        assert one.columns() == other.columns()
        assert [p.metadata for b in one.walk(4) for p in b] == [p.metadata for b in other.walk(4) for p in b]
        assert all(one.thumbnail(p) == other.thumbnail(p) for p in {photo[0] for photo in one.photos()})
    assert Retriever.open(shop / "bundle", shop / "copy").search(shop / "3-0.png").matches[0].item_id == "item-3"
    with pytest.raises(GalleryError, match="exists"):
        call("gallery", "export", shop / "g", shop / "backup")
    Gallery.create(shop / "other", dim=3, embedding_id="another").close()
    with pytest.raises(GalleryError, match="another model"):
        call("gallery", "import", shop / "backup", shop / "other")
    with pytest.raises(DataError, match="not an exported gallery"):
        call("gallery", "import", shop / "r.json", shop / "never")
    with pytest.raises(DataError, match=r"none does not exist\. Name a folder that `retrieval gallery export`"):
        call("gallery", "import", shop / "none", shop / "never")


@pytest.mark.parametrize("content", [b"\x00", b'{"points": [{}]}', b"[" * 100_000], ids=len)
def test_a_threshold_that_cannot_be_read_is_named_and_not_imported(shop: Path, content: bytes) -> None:
    with Gallery.open(shop / "g") as gallery:
        gallery.keep({POINT: content}, "damage")
    call("gallery", "export", shop / "g", shop / "backup")
    with pytest.raises(GalleryCorrupt, match=r"operating points cannot be read.*Index its photos again"):
        call("gallery", "import", shop / "backup", shop / "copy")
    assert not (shop / "copy").exists()
    bad = [finding.text for finding in examine(None, shop / "g") if not finding.good]
    assert [text for text in bad if "operating points cannot be read" in text]


def test_a_csv_export_is_a_table_for_spreadsheets(shop: Path) -> None:
    with Gallery.open(shop / "g") as gallery:
        odd = {"note": "=1+1", "sizes": [1, "ü"], "new": True, "photo_id": 'with "quotes", and\nlines', "none": None}
        gallery.add(["-x"], ["y"], np.eye(1, gallery.dim), metadata=[odd])
    assert "13 photos" in call("gallery", "export", shop / "g", shop / "g.csv").output
    with (shop / "g.csv").open(newline="", encoding="utf-8-sig") as file:
        lines = list(csv.DictReader(file))
    columns = ["brand", "mixed", "new", "none", "note", "metadata.photo_id", "price", "sizes"]
    assert list(lines[0]) == ["photo_id", "item_id", *columns]
    assert {"photo_id": "3-1.png", "item_id": "item-3", "brand": "b", "price": "3"}.items() <= lines[7].items()
    told = {"metadata.photo_id": odd["photo_id"], "new": "true", "note": "'=1+1", "sizes": '[1, "ü"]'}
    assert lines[-1] == dict.fromkeys(lines[0], "") | {"photo_id": "'-x", "item_id": "y"} | told
    with pytest.raises(DataError, match=r"table without vectors.*Name a folder"):
        call("gallery", "import", shop / "g.csv", shop / "copy")
    with pytest.raises(GalleryError, match="exists"):
        call("gallery", "export", shop / "g", shop / "g.csv")


def test_an_export_to_where_nothing_can_be_written_is_an_error_of_ours(shop: Path) -> None:
    for name in ("r.json/backup", "r.json/g.csv"):
        with pytest.raises(NotADirectoryError, match=r"r\.json"):
            call("gallery", "export", shop / "g", shop / name)


def test_columns_are_declared_by_hand(shop: Path) -> None:
    with Gallery.open(shop / "g") as gallery:
        gallery.add(["x"], ["x"], np.eye(1, gallery.dim), metadata=[{"size": 3}])
    assert "size" in call("gallery", "declare", shop / "g", "size:number", "colour").output
    with pytest.raises(InvalidParameter, match="be one of text, number, boolean"):
        call("gallery", "declare", shop / "g", "depth:metres")


def test_columns_of_one_kind_are_offered() -> None:
    photos = [
        Photo("a", Path("a"), "x", group="g", metadata={"price": 1, "mixed": 1, "and": "x", "x y": "z"}),
        Photo("b", Path("b"), "y", metadata={"price": 2.5, "mixed": "one", "sale": True}),
    ]
    assert columns_of(photos) == {"group": "text", "price": "number", "sale": "boolean"}


def test_of_columns_that_differ_in_case_alone_filters_use_the_first(shop: Path) -> None:
    (shop / "cases.csv").write_text("path,item_id,Size,size\n0.png,a,L,3\n1.png,b,M,4\n")
    for number in range(2):
        draw(number, 0).save(shop / f"{number}.png")
    call("index", shop / "bundle", shop / "cases.csv", "-o", shop / "cases")
    with Gallery.open(shop / "cases") as gallery:
        assert gallery.columns() == {"Size": "text"}
        assert [metadata["size"] for *_, metadata in gallery.photos()] == [3, 4]
    call("index", shop / "bundle", shop / "cases.csv", "-o", shop / "cases")
    with pytest.raises(InvalidParameter, match=r"column must differ from Size in more than case, got 'size'. Rename"):
        call("gallery", "declare", shop / "cases", "size:number")


def test_ids_that_are_no_text_are_refused_in_one_line(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("remove", shop / "g", "--item", "z\udcff"), ("export", shop / "g", shop / "z\udcff.parquet")):
        monkeypatch.setattr("sys.argv", ["retrieval", "gallery", *map(str, words)])
        with pytest.raises(SystemExit):
            main()
        told = capsys.readouterr().err
        assert told.startswith("error: ")
        assert told.count("\n") == 1


def test_one_bad_cell_is_named_and_the_column_mended(shop: Path) -> None:
    lines = [f"{number}.png,item-{number},{number if number else 'n/a'}" for number in range(6)]
    for number in range(6):
        draw(number, 0).save(shop / f"{number}.png")
    (shop / "prices.csv").write_text("\n".join(["path,item_id,cost", *lines]) + "\n")
    told = "1 cell of the column cost is not a number, so the column is text:\n  0.png: 'n/a'\n"
    assert told in call("data", "check", shop / "prices.csv").output
    done = call("index", shop / "bundle", shop / "prices.csv", "-o", shop / "prices")
    assert told in done.output
    assert f"then: retrieval gallery declare {shop / 'prices'} cost:number" in done.output
    with pytest.raises(DataError, match=r"1 value cannot be converted: cost of 0.png is 'n/a', not a number"):
        call("gallery", "declare", shop / "prices", "cost:number")
    (shop / "prices.csv").write_text("\n".join(["path,item_id,cost", *lines]).replace("n/a", "7") + "\n")
    assert "is text" not in call("index", shop / "bundle", shop / "prices.csv", "-o", shop / "prices").output
    assert "cost" in call("gallery", "declare", shop / "prices", "cost:number").output
    with Gallery.open(shop / "prices", read_only=True) as gallery:
        assert gallery.columns()["cost"] == "number"
        assert sorted(metadata["cost"] for *_, metadata in gallery.photos()) == [1, 2, 3, 4, 5, 7]
