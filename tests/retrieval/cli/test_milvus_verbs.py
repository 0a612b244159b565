"""Commands with a gallery on Milvus Lite: each accepts its address or explains why it cannot."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from index.errors import GalleryError
from index.location import open_gallery
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.indexing.pipeline import index_catalogue

from ...world import draw, write_folder
from ..galleries.test_measured import bundle_of

pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("empty_pictures"),
    pytest.mark.filterwarnings("ignore"),  # pymilvus warns of its own dependencies
]


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)


def run(*words: object) -> Result:
    """Run a command that must succeed."""
    done = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def refusal(*words: object) -> GalleryError:
    """Return the error of a command."""
    with pytest.raises(GalleryError) as error:
        CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    return error.value


def test_every_verb_takes_an_address(tmp_path: Path) -> None:
    bundle, address = bundle_of(tmp_path), f"milvus+{tmp_path}/lite.db/shop"
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(24), photos=range(2)))
    index_catalogue(bundle, photos, address, progress=False)
    info = run("gallery", "info", address).output
    assert "48 photos of 24 items, 48 numbers each" in info
    assert "Created 20" in info
    assert "set in this gallery" in info
    run("gallery", "declare", address, "colour:text")
    assert "1 photo removed." in run("gallery", "remove", address, "--photo", "item-00/0.png").output
    log = [line.split(maxsplit=3)[1:] for line in run("gallery", "log", address).output.splitlines()]
    changes = [words[-1].split("  ")[0] for words in log]
    assert changes[:3] == ["remove", "declare colour", "calibrate"]
    assert set(changes[3:]) == {"add"}  # one for each second of indexing
    assert "47 photos are intact; Milvus checks its own files." in run("gallery", "verify", address).output
    assert "Milvus maintains the index" in refusal("gallery", "rebuild", address).message
    assert "47 photos of 24 items" in run("audit", bundle.path, address).output
    assert run("calibrate", bundle.path, address, "--report", tmp_path / "report.html").exit_code == 0
    run("gallery", "report", bundle.path, address, "-o", tmp_path / "again.html")
    assert "item-" in (tmp_path / "again.html").read_text()
    assert "No problems found." in run("doctor", bundle.path, address).output
    draw(3, 5).save(tmp_path / "query.png")
    found = json.loads(run("search", bundle.path, address, tmp_path / "query.png", "--json").output)
    assert found["matches"][0]["item_id"] == "item-03"
    many = tmp_path / "answers.jsonl"
    run("search", bundle.path, address, tmp_path / "photos", "-o", many, "--truth", "item_id")
    assert len(many.read_text().splitlines()) == 48
    run("gallery", "export", address, tmp_path / "table.csv")
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 48


def test_a_noisy_photo_has_a_thumbnail_that_milvus_can_hold(tmp_path: Path) -> None:
    from PIL import Image

    bundle, address = bundle_of(tmp_path), f"milvus+{tmp_path}/lite.db/shop"
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    (tmp_path / "photos").mkdir()
    Image.fromarray(noise).save(tmp_path / "photos" / "noise.png")
    report = index_catalogue(bundle, read_catalogue(tmp_path / "photos"), address, progress=False)
    assert report.added == 1
    with open_gallery(address) as gallery:
        assert gallery.thumbnail("noise.png") is not None
