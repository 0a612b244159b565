"""Every release's files open: runs go on, are evaluated and exported; galleries and backups answer as they did."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sqlite3
import tarfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from index.gallery import Gallery
from index.upkeep import backup_020
from index.upkeep.backup_020 import FACTS, KEPT, read_backup
from retrieval.bundle.bundle import Bundle
from retrieval.cli.main import group
from retrieval.errors import BundleError, DataError, GalleryError, RetrievalError, RunError

from ..conftest import ROOT
from .make import answers

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))
LATER = "was written by a later version of this program"


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(request.param) as file:
        file.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have none
        file.extractall(folder)  # noqa: S202 - an archive of this repository
    for path in folder.rglob("settings.json"):  # a run names its catalogue by an absolute path
        path.write_text(json.dumps(json.loads(path.read_text()) | {"catalogue": str(folder / "photos")}))
    return folder


@pytest.fixture
def released(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of what a release wrote; its run names the backbone from the folder that it ran in."""
    monkeypatch.chdir(unpacked)
    return shutil.copytree(unpacked, tmp_path / "release")


def call(*words: object) -> str:
    done = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def rows(gallery: Path) -> list[Any]:
    """Return the rows of the vectors of all photos, and what a gallery keeps."""
    with closing(sqlite3.connect(gallery / "gallery.sqlite")) as connection:
        return [
            connection.execute(query).fetchall()
            for query in ("SELECT name, rows, sha256 FROM segments", "SELECT seq, photo_id, item FROM photos")
        ]


def test_every_release_has_an_archive() -> None:
    released = re.findall(r"^## (\d\S+) - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released
    assert {f"{version}.tar.xz" for version in released} <= {path.name for path in ARCHIVES}


def test_a_released_gallery_answers_as_it_did(released: Path) -> None:
    recorded = json.loads((released / "answers.json").read_text())
    assert {"match", "no_match", "perhaps"} <= {answer["decision"] for answer in recorded["photos"]}
    assert all(match["p_value"] for answer in recorded["photos"] for match in answer["matches"] + answer["review"])
    assert_same(answers(released / "bundle", released / "gallery"), recorded)


def test_a_released_gallery_that_nobody_may_write_answers_as_it_did_and_stays_as_it_is(released: Path) -> None:
    gallery = released / "gallery"
    files = {path: path.read_bytes() for path in gallery.rglob("*") if path.is_file()}
    set_writable(gallery, False)
    try:
        assert_same(answers(released / "bundle", gallery), json.loads((released / "answers.json").read_text()))
        assert {path: path.read_bytes() for path in gallery.rglob("*") if path.is_file()} == files
    finally:
        set_writable(gallery, True)


def set_writable(folder: Path, writable: bool) -> None:
    """Let everyone, or nobody, write a folder and what it holds."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & 0o555 | (0o200 if writable else 0))


def assert_same(now: dict[str, Any], recorded: dict[str, Any]) -> None:
    """Compare answers and rates: p-values exactly, distances and rates to the digits that machines agree on.

    Only the bound on the FPIR may differ: the first version's draws lack the rivals that today's bounds count.
    """
    assert now["status"] == recorded["status"]
    for name, rate in recorded["rates"].items():
        assert now["rates"][name] == pytest.approx(rate, rel=0.02 if name == "fpir_upper" else 1e-6)
    for kind in ("photos", "two photos"):
        for answer, before in zip(now[kind], recorded[kind], strict=True):
            for name in ("decision", "reason", "threshold_status"):
                assert answer[name] == before[name]
            assert answer["threshold"] == pytest.approx(before["threshold"], rel=1e-6)
            for name in ("matches", "review", "ranked"):
                assert_same_items(answer[name], before[name])


def assert_same_items(now: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> None:
    for match, before in zip(now, recorded, strict=True):
        assert (match["item_id"], match["photo_id"]) == (before["item_id"], before["photo_id"])
        assert match["distance"] == pytest.approx(before["distance"], abs=1e-4)
        assert match["p_value"] == pytest.approx(before["p_value"], rel=1e-9)


def test_a_released_gallery_indexed_again_gets_no_new_rows_and_keeps_its_threshold(released: Path) -> None:
    before = rows(released / "gallery")
    printed = call("index", released / "bundle", released / "photos", "-o", released / "gallery")
    assert "0 photos added, 48 already there." in printed
    assert re.search(r"Threshold before: (\d\.\d{4}), now: \1 \(unchanged\)\.", printed), printed
    assert rows(released / "gallery") == before


def test_a_released_backup_restores_what_was_exported(released: Path, tmp_path: Path) -> None:
    printed = call("gallery", "import", released / "gallery.parquet", tmp_path / "restored")
    assert "photos, with their threshold.\nNo draws were imported" in printed
    recorded = json.loads((released / "answers.json").read_text())
    for catalogue in ("photos", "more"):  # makes the draws again
        call("index", released / "bundle", released / catalogue, "-o", tmp_path / "restored")
    restored = answers(released / "bundle", tmp_path / "restored")
    for answer, before in zip(restored["photos"], recorded["photos"], strict=True):
        assert answer["decision"] == before["decision"]
        assert answer["threshold"] == pytest.approx(before["threshold"], rel=1e-6)


@pytest.mark.end_to_end
def test_a_released_run_that_was_killed_goes_on(released: Path) -> None:
    call("train", "--resume", "-o", released / "begun")
    assert json.loads((released / "begun" / "progress.json").read_text())["epoch"] == 2


@pytest.mark.end_to_end
@pytest.mark.usefixtures("onnx_written_once")
def test_a_released_run_is_evaluated_exported_and_trained_from(released: Path, tmp_path: Path) -> None:
    assert "TPIR" in call("evaluate", released / "run")
    options = "--even-if-worse", "--target-fpir", "0.3"
    call("export", released / "run", "-o", tmp_path / "bundle", *options)
    old, new = Bundle.open(released / "bundle"), Bundle.open(tmp_path / "bundle")
    assert new.threshold == pytest.approx(old.threshold, rel=1e-3, nan_ok=True)
    call("train", released / "photos", "--from", released / "begun", "-o", tmp_path / "next", "--epochs", 1)


# what a later version writes


def renumber(path: Path, pattern: str) -> None:
    """Raise the format number of a text file by one."""
    text = path.read_text()
    (number,) = re.findall(pattern, text)
    path.write_text(re.sub(pattern, lambda found: found[0].replace(number, str(int(number) + 1)), text))


def test_a_later_bundle_is_refused_by_name(released: Path) -> None:
    renumber(released / "bundle" / "manifest.json", r'"format_version": (\d+)')
    refused(lambda: Bundle.open(released / "bundle"), BundleError)


def test_a_later_run_is_refused_by_name(released: Path) -> None:
    renumber(released / "begun" / "settings.json", r'"format": (\d+)')
    refused(lambda: call("evaluate", released / "begun"), RunError)
    refused(lambda: call("train", "--resume", "-o", released / "begun"), RunError)


def test_a_later_gallery_is_refused_by_name_although_its_tables_are_others(released: Path) -> None:
    with closing(sqlite3.connect(released / "gallery" / "gallery.sqlite")) as connection, connection:
        connection.execute("UPDATE facts SET value = value + 1 WHERE key = 'format'")
        connection.execute("DELETE FROM facts WHERE key NOT IN ('format')")
        connection.execute("ALTER TABLE segments RENAME TO files")
    refused(lambda: Gallery.open(released / "gallery"), GalleryError)


def test_a_later_backup_is_refused_by_name(released: Path, tmp_path: Path) -> None:
    table = pq.read_table(released / "gallery.parquet")
    facts = json.loads(table.schema.metadata[FACTS])
    later = {FACTS: json.dumps({"format": facts["format"] + 1}).encode()}
    pq.write_table(table.select(["photo_id"]).replace_schema_metadata(later), tmp_path / "later.parquet")
    refused(lambda: read_backup(tmp_path / "later.parquet", tmp_path / "new"), DataError)
    assert not (tmp_path / "new").exists()


def test_a_backup_whose_contents_burst_is_refused(released: Path, tmp_path: Path) -> None:
    table = pq.read_table(released / "gallery.parquet")
    bomb = base64.b64encode(zlib.compress(bytes(2**20))).decode()
    kept = {KEPT: json.dumps({"operating point": bomb}).encode()}
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, **kept}), tmp_path / "bomb.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup_020, "MOST_KEPT", 2**19)
        with pytest.raises(DataError, match="not an exported gallery"):
            read_backup(tmp_path / "bomb.parquet", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def refused(action: Any, error: type[RetrievalError]) -> None:
    with pytest.raises(error, match=LATER) as caught:
        action()
    assert type(caught.value) is error  # and is not called damaged
    assert "Upgrade this program" in caught.value.remedy
