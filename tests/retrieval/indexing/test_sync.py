"""A second run makes a gallery what the catalogue says, and embeds only what it must."""

from __future__ import annotations

import csv
import json
import os
import re
from functools import reduce
from math import nan
from pathlib import Path

import pytest
from click.testing import CliRunner

from index.gallery import Gallery
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import DataError, InvalidParameter
from retrieval.indexing import pipeline
from retrieval.indexing.pipeline import IndexReport, index_catalogue, plan_catalogue
from retrieval.indexing.plan import SyncPlan, SyncSettings, plan_table, sync_table

from ...gallery_contents import contents
from ...world import draw, make_bundle

HEADER = ["path", "item_id", "group", "bbox", "price", "brand"]


class Shop:
    """A table of photos that tests edit, with a gallery that follows it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bundle = folder, make_bundle(folder)
        self.rows = {f"{n}.png": [f"{n}.png", f"item-{n}", "", "", str(n), "ab"[n % 2]] for n in range(6)}
        for n in range(6):
            draw(n, 0).save(folder / f"{n}.png")
        self.embedded: list[str] = []

    def write(self) -> Path:
        with (self.folder / "t.csv").open("w", newline="") as file:
            csv.writer(file).writerows([HEADER, *self.rows.values()])
        return self.folder / "t.csv"

    def sync(self, **settings: bool) -> IndexReport:
        self.embedded.clear()
        return index_catalogue(
            self.bundle, read_catalogue(self.write()), self.folder / "g", progress=False, sync=SyncSettings(**settings)
        )

    def plan(self) -> SyncPlan:
        return plan_catalogue(self.bundle, read_catalogue(self.write()), self.folder / "g")

    def stored(self) -> dict[str, tuple[str, dict[str, object], bytes]]:
        with Gallery.open(self.folder / "g", read_only=True) as gallery:
            vectors = dict(zip(contents(gallery)[0], contents(gallery)[2], strict=True))
            return {name: (item, facts, vectors[name].tobytes()) for name, item, facts in gallery.photos()}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    shop, embed = Shop(tmp_path), pipeline.embed_batch

    def noted(*arguments, **options):  # type: ignore[no-untyped-def]
        made = embed(*arguments, **options)
        shop.embedded += [photo.photo_id for photo in made.photos]
        return made

    monkeypatch.setattr(pipeline, "embed_batch", noted)
    shop.sync()
    assert len(shop.embedded) == 6
    return shop


def test_a_changed_row_is_written_without_embedding_it_again(shop: Shop) -> None:
    before = shop.stored()
    shop.rows["0.png"][1:3] = ["other", "fruit"]
    shop.rows["1.png"][4] = "9.5"
    shop.rows["2.png"][5] = ""
    report = shop.sync()
    assert (report.added, report.updated, report.skipped, shop.embedded) == (0, 3, 3, [])
    after = shop.stored()
    assert (after["0.png"][0], after["0.png"][1]["group"]) == ("other", "fruit")
    assert after["1.png"][1]["price"] == 9.5
    assert "brand" not in after["2.png"][1]
    for name in shop.rows:
        assert after[name][2] == before[name][2]
        assert after[name][1]["_content_sha256"] == before[name][1]["_content_sha256"]
    assert shop.sync().skipped == 6
    with Gallery.open(shop.folder / "g", actor="ann") as gallery:
        assert gallery.changes(1)[0].action == "update"


def test_other_pixels_are_embedded_again(shop: Shop) -> None:
    before = shop.stored()
    shop.rows["0.png"][3] = "0 0 20 20"
    draw(50, 0).save(shop.folder / "1.png")
    os.utime(shop.folder / "2.png", ns=(1, 1))  # read, and found to be the same
    report = shop.sync()
    assert (report.added, report.replaced, report.updated, report.skipped) == (2, 2, 0, 4)
    assert sorted(shop.embedded) == ["0.png", "1.png"]
    after = shop.stored()
    assert [name for name in shop.rows if after[name][2] != before[name][2]] == ["0.png", "1.png"]
    assert after["0.png"][1]["_bbox"] == [0, 0, 20, 20]
    assert shop.plan().read == []
    shop.rows["0.png"][3] = ""
    assert shop.sync().replaced == 1
    assert shop.stored()["0.png"] == before["0.png"]


def test_a_file_of_the_same_size_and_time_is_read_only_with_a_checksum(shop: Shop) -> None:
    state = (shop.folder / "1.png").stat()
    data = bytearray((shop.folder / "1.png").read_bytes())
    data[-1] ^= 1  # in the checksum of the last chunk, which holds no pixels
    (shop.folder / "1.png").write_bytes(bytes(data))
    os.utime(shop.folder / "1.png", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert shop.sync().skipped == 6
    report = shop.sync(checksum=True)
    assert (report.skipped, report.replaced + len(report.refused)) == (5, 1)


def test_photos_that_are_gone_are_reported_and_removed_on_request(shop: Shop) -> None:
    del shop.rows["3.png"], shop.rows["4.png"]
    report = shop.sync()
    assert (report.gone, report.removed, report.skipped) == (["3.png", "4.png"], 0, 4)
    assert len(shop.stored()) == 6
    report = shop.sync(prune=True)
    assert (report.gone, report.removed) == ([], 2)
    assert shop.stored().keys() == shop.rows.keys()


def test_a_missing_file_is_refused_and_its_photo_stays(shop: Shop) -> None:
    (shop.folder / "5.png").unlink()
    report = shop.sync(prune=True)
    assert [photo_id for photo_id, _ in report.refused] == ["5.png"]
    assert (report.removed, len(shop.stored())) == (0, 6)


def test_the_plan_says_what_a_run_does_and_writes_nothing(shop: Shop) -> None:
    shop.rows["0.png"][1] = "other"
    shop.rows["1.png"][3] = "0 0 20 20"
    del shop.rows["3.png"]
    draw(9, 0).save(shop.folder / "9.png")
    shop.rows["9.png"] = ["9.png", "new", "", "", "4", "a"]
    before = shop.stored()
    words = ["index", str(shop.bundle.path), str(shop.write()), "-o", str(shop.folder / "g"), "--dry-run"]
    told = CliRunner().invoke(group, [*words, "--report", str(shop.folder / "plan.json")])
    assert told.exit_code == 0, told.output
    for line in (
        "1 photo to add:\n  9.png: item new\n",
        "1 photo to read, and to embed if its content differs:\n  1.png: bbox none -> [0.0, 0.0, 20.0, 20.0]\n",
        "1 photo to update:\n  0.png: item item-0 -> other\n",
        "1 photo of the gallery, not in the catalogue:\n  3.png\n",
        "3 photos are unchanged. Nothing was written.\n",
    ):
        assert line in told.output
    assert json.loads((shop.folder / "plan.json").read_text())["gone"] == ["3.png"]
    assert shop.stored() == before
    told = CliRunner().invoke(group, [*words[:-1], "--prune"])
    counts = r"2 photos added in \d+ s, 1 of them replaced, 1 updated, 1 removed, 3 already there\."
    assert re.search(counts, told.output)
    again = CliRunner().invoke(group, words).output
    assert again.startswith("6 photos of 6 items, from a CSV with commas.\n6 photos are unchanged")
    assert [len(lines) for _, lines in plan_catalogue(shop.bundle, [], shop.folder / "none").sections()] == [0] * 5


def test_a_gallery_of_texts_keeps_them_until_a_column_is_declared(shop: Shop) -> None:
    def run(*words: str) -> str:
        arguments = ["index", str(shop.bundle.path), str(shop.write()), "-o", str(shop.folder / "g"), *words]
        told = CliRunner().invoke(group, arguments)
        assert told.exit_code == 0, told.output
        return told.output

    run("--column", "price=text")
    with Gallery.open(shop.folder / "g", read_only=True) as gallery:
        assert gallery.columns()["price"] == "text"
        assert gallery.photo("3.png")[2]["price"] == "3"
    shop.rows["3.png"][4] = "30"
    assert "1 updated, 5 already there" in run()
    del shop.rows["5.png"]
    shop.embedded.clear()
    run("--column", "price=number")
    assert shop.embedded == []
    with Gallery.open(shop.folder / "g", read_only=True) as gallery:
        assert gallery.columns()["price"] == "number"
        assert {name: facts["price"] for name, _, facts in gallery.photos()}["5.png"] == 5
        vector = contents(gallery)[2][:1]
        found = gallery.search(vector, 6, where="price < 3 and brand = 'a'")
        assert {neighbour.photo_id for neighbour in found[0]} == {"0.png", "2.png"}
    assert "5 already there" in run()


def test_a_column_with_another_text_is_not_converted(shop: Shop) -> None:
    with Gallery.open(shop.folder / "g") as gallery:
        item, facts = gallery.photo("1.png")[1:]
        gallery.update(["1.png"], [item], [{**facts, "brand": "x"}])
        before = gallery.photos(), gallery.columns()
        version = gallery.version
    with pytest.raises(
        DataError, match=r"6 values cannot be converted: brand of 0.png is 'a', not a number; brand of 1.png"
    ):
        index_catalogue(
            shop.bundle,
            read_catalogue(shop.write()),
            shop.folder / "g",
            progress=False,
            sync=SyncSettings(columns={"brand": "number"}),
        )
    with Gallery.open(shop.folder / "g") as gallery:
        assert (gallery.photos(), gallery.columns()) == before
        assert gallery.version == version


def test_a_gallery_without_file_states_is_compared_by_content(shop: Shop) -> None:
    with Gallery.open(shop.folder / "g") as gallery:
        rows = [
            (name, item, {k: v for k, v in facts.items() if k != "_file"}) for name, item, facts in gallery.photos()
        ]
        gallery.update(*map(list, zip(*rows, strict=True)))
    shop.rows["0.png"][1] = "other"
    draw(51, 0).save(shop.folder / "1.png")
    plan = plan_catalogue(shop.bundle, read_catalogue(shop.write()), shop.folder / "g")
    assert (len(plan.read), len(plan.updates)) == (6, 0)
    report = shop.sync()
    assert (report.added, report.updated, report.skipped, shop.embedded) == (1, 1, 4, ["1.png"])
    assert shop.stored()["0.png"][0] == "other"
    assert (shop.plan().read, shop.plan().unchanged) == ([], 6)


def test_touched_files_are_read_once(shop: Shop) -> None:
    before = shop.stored()
    for name in shop.rows:
        os.utime(shop.folder / name, ns=(1, 1))
    assert len(shop.plan().read) == 6
    report = shop.sync()
    assert (report.added, report.updated, report.skipped, shop.embedded) == (0, 0, 6, [])
    assert (shop.plan().read, shop.plan().unchanged) == ([], 6)
    for name, (item_id, facts, vector) in shop.stored().items():
        size = (shop.folder / name).stat().st_size
        assert (item_id, facts, vector) == (before[name][0], {**before[name][1], "_file": f"{size} 1"}, before[name][2])
    with Gallery.open(shop.folder / "g") as gallery:
        version = gallery.version
    shop.sync(checksum=True)
    with Gallery.open(shop.folder / "g") as gallery:
        assert gallery.version == version


def test_a_value_of_another_kind_is_refused_with_a_remedy_that_works(shop: Shop) -> None:
    shop.rows["3.png"][4] = "n/a"
    words = ["index", str(shop.bundle.path), str(shop.write()), "-o", str(shop.folder / "g")]
    told = CliRunner().invoke(group, words).output
    reason = "price is 'n/a', and the gallery's column price is a number; correct the value, or make the column text"
    assert f"1 photo refused:\n  3.png: {reason} with --column price=text\n" in told
    assert "1 refused" not in CliRunner().invoke(group, [*words, "--column", "price=text"]).output
    assert shop.stored()["3.png"][1]["price"] == "n/a"


def test_a_dry_run_refuses_the_rows_that_the_run_refuses_with_the_same_reasons(shop: Shop) -> None:
    shop.rows["3.png"][4] = "n/a"
    shop.rows["4.png"][5] = "a\0b"
    draw(9, 0).save(shop.folder / "9.png")
    shop.rows["9.png"] = ["9.png", "x" * 501, "", "", "4", "a"]
    words = ["index", str(shop.bundle.path), str(shop.write()), "-o", str(shop.folder / "g")]
    plan = plan_catalogue(shop.bundle, read_catalogue(shop.write(), known={"price": "number"}), shop.folder / "g")
    assert plan.refused.keys() == {"3.png", "4.png", "9.png"}
    told = CliRunner().invoke(group, [*words, "--dry-run"]).output
    assert "3 photos refused:\n" in told
    assert "to add" not in told
    assert "to update" not in told
    done = CliRunner().invoke(group, words).output
    for photo_id, reason in plan.refused.items():
        assert f"  {photo_id}: {reason}\n" in told
        assert f"  {photo_id}: {reason}\n" in done
    words += ["--column", "price=text"]
    assert "  3.png: price 3 -> 'n/a'\n" in CliRunner().invoke(group, [*words, "--dry-run"]).output
    assert "2 refused" in CliRunner().invoke(group, words).output


@pytest.mark.parametrize(
    ("metadata", "rule"),
    [
        ({"price": "n/a"}, "be a number"),
        ({"price": nan}, "hold JSON values"),
        ({"brand": "a\0b"}, "have no null character"),
        ({"size": reduce(lambda inner, _: [inner], range(70), 1)}, "be nested at most 64 levels deep"),
    ],
)
def test_a_dry_run_of_a_table_refuses_the_values_that_the_real_one_refuses(
    shop: Shop, metadata: dict[str, object], rule: str
) -> None:
    photos = [Photo("0.png", Path("0.png"), "item-0", metadata=metadata)]
    with Gallery.open(shop.folder / "g") as gallery:
        version = gallery.version
        with pytest.raises(InvalidParameter, match=f"metadata.* must {rule}") as dry:
            plan_table(gallery, photos, SyncSettings())
        with pytest.raises(InvalidParameter) as real:
            sync_table(gallery, photos, SyncSettings())
        assert gallery.version == version
    assert dry.value.message == real.value.message
    assert "_content_sha256" not in dry.value.message


def test_items_of_other_spellings_keep_those_of_the_gallery(shop: Shop) -> None:
    nfd = "Ka\u0308se"
    with Gallery.open(shop.folder / "g") as gallery:
        gallery.update(
            ["0.png", "1.png"],
            ["item-0 ", f"{nfd}/1"],
            [{**shop.stored()["0.png"][1]}, {**shop.stored()["1.png"][1], "group": nfd}],
        )
    before = shop.stored()
    shop.rows["1.png"][1:3] = ["K\u00e4se/1", "K\u00e4se"]
    report = shop.sync()
    assert (report.added, report.updated, report.skipped, report.gone, shop.embedded) == (0, 0, 6, [], [])
    assert shop.stored() == before
