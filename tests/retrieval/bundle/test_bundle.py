import json
import os
from pathlib import Path

import numpy as np
import pytest

from retrieval.bundle.bundle import Bundle
from retrieval.errors import BundleCorrupt, BundleError
from retrieval.measuring.point import Point, Rates

from ...world import DIM, make_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path)


def test_a_bundle_opens_as_it_was_written(bundle: Bundle) -> None:
    again = Bundle.open(bundle.path)
    assert again.manifest == bundle.manifest
    assert again.threshold == 0.5
    assert again.operating_point == Point(0.5, "estimated", 0.05, rates=Rates(fpir=0.05))
    made = again.embedder().embed_pixels(np.random.default_rng(0).integers(0, 255, (3, 32, 32, 3), dtype=np.uint8))
    assert made.vectors.shape == (3, DIM)


def test_each_file_is_synced_with_all_that_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[str, int] = {}
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced[Path(f"/proc/self/fd/{handle}").resolve().name] = os.fstat(handle).st_size
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    bundle = make_bundle(tmp_path)
    assert {file.name: file.stat().st_size for file in bundle.path.iterdir()}.items() <= synced.items()


@pytest.mark.parametrize("name", ["model.onnx", "notes.txt"])
def test_one_flipped_bit_anywhere_is_found(bundle: Bundle, name: str) -> None:
    data = bytearray((bundle.path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle.path / name).write_bytes(data)
    with pytest.raises(BundleCorrupt, match=name.replace(".", r"\.")):
        Bundle.open(bundle.path)


def test_a_missing_file_is_found(bundle: Bundle) -> None:
    (bundle.path / "notes.txt").unlink()
    with pytest.raises(BundleCorrupt, match=r"notes\.txt"):
        Bundle.open(bundle.path)


def test_an_edited_threshold_is_refused(bundle: Bundle) -> None:
    path = bundle.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["operating_point"]["threshold"] = 1.9
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleCorrupt, match="was changed"):
        Bundle.open(bundle.path)
    with pytest.raises(BundleCorrupt):
        Bundle.open(bundle.path, verify=False)


def test_the_threshold_moves_the_bundle_id_only(tmp_path: Path) -> None:
    one = make_bundle(tmp_path, name="a")
    other = make_bundle(tmp_path, name="b", threshold=0.6)
    assert one.embedding_id == other.embedding_id
    assert one.bundle_id != other.bundle_id
    assert make_bundle(tmp_path, name="c").bundle_id == one.bundle_id


def test_evidence_and_the_report_are_no_part_of_the_bundle_id_but_cannot_be_edited(tmp_path: Path) -> None:
    files = {"notes.txt": b"hello"}
    one = make_bundle(tmp_path, name="a", files={**files, "report.html": b"1"}, evidence={"seconds": 1.5})
    other = make_bundle(tmp_path, name="b", files={**files, "report.html": b"2"}, evidence={"seconds": 2.5})
    assert one.bundle_id == other.bundle_id
    assert make_bundle(tmp_path, name="c", files={"notes.txt": b"bye"}).bundle_id != one.bundle_id
    path = other.path / "manifest.json"
    path.write_text(path.read_text().replace('"seconds": 2.5', '"seconds": 0.5'))
    with pytest.raises(BundleCorrupt, match="was changed"):
        Bundle.open(other.path)


def test_a_bundle_is_never_overwritten_and_nothing_is_left_behind(tmp_path: Path) -> None:
    make_bundle(tmp_path)
    with pytest.raises(BundleError, match="immutable"):
        make_bundle(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "tiny.onnx"]


def test_no_bundle_and_another_format_are_told_apart(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not a bundle"):
        Bundle.open(tmp_path)
    path = bundle.path / "manifest.json"
    path.write_text(path.read_text().replace('"format_version": 8', '"format_version": 7'))
    with pytest.raises(BundleError, match="format 7, this program reads format 8"):
        Bundle.open(bundle.path)
    path.write_text("{")
    with pytest.raises(BundleCorrupt, match="damaged"):
        Bundle.open(bundle.path)
