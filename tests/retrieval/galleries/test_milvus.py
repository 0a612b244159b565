"""The operating point of a gallery on Milvus equals that of a local gallery; on Milvus Lite, a file."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from index.database import POINT
from index.gallery import Gallery
from index.milvus.gallery import MilvusGallery
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.galleries.points import stored_point
from retrieval.indexing.pipeline import index_catalogue
from retrieval.retriever import Retriever
from serving.service import Service
from serving.settings import ServeSettings

from ...world import draw, encode, write_folder
from .test_measured import bundle_of

pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # pymilvus warns of its own dependencies


def test_a_gallery_on_milvus_is_anchored_tightened_and_calibrated(tmp_path: Path) -> None:
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    bundle, address = bundle_of(tmp_path), f"milvus+{tmp_path}/lite.db/shop"
    places = (address, tmp_path / "g")
    few, many = (read_catalogue(write_folder(tmp_path / f"p{n}", items=range(n), photos=range(2))) for n in (24, 50))
    for photos in (few, many):
        milvus, local = (index_catalogue(bundle, photos, place, progress=False, batch_size=32) for place in places)
        assert milvus.unanchored == ""
        assert milvus.point is not None
        assert local.point is not None
        as_milvus = {"looks": None, "gallery_version": milvus.point.basis.gallery_version}  # one look on Milvus
        assert milvus.point == replace(local.point, basis=replace(local.point.basis, **as_milvus))
        assert milvus.rates is not None
        assert local.rates is not None
        assert milvus.rates.to_dict(milvus.point) == local.rates.to_dict(local.point)
    with Retriever.open(bundle.path, address) as retriever, Retriever.open(bundle.path, tmp_path / "g") as beside:
        for photo in (draw(3, 9), draw(77, 1)):
            found, expected = (each.search(encode(photo)) for each in (retriever, beside))
            assert found.nearest is not None
            assert found.nearest.p_value is not None
            assert found.threshold_status == "estimated"
            assert (found.threshold, found.matches) == (expected.threshold, expected.matches)
    words = ["calibrate", str(bundle.path), address, "--target-fpir", "0.04"]
    dry = CliRunner().invoke(group, [*words, "--dry-run"], catch_exceptions=False)
    assert "Nothing was written" in dry.output
    assert CliRunner().invoke(group, words, catch_exceptions=False).exit_code == 0
    with MilvusGallery.open(address) as gallery, Gallery.open(tmp_path / "g") as other:
        point = stored_point(gallery.kept(POINT), bundle)
        assert point is not None
        assert point.target_fpir == 0.04
        assert stored_point(other.kept(POINT), bundle) != point


def test_photos_added_over_http_are_found(tmp_path: Path) -> None:
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    bundle, address = bundle_of(tmp_path), f"milvus+{tmp_path}/lite.db/shop"
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(24), photos=range(2)))
    index_catalogue(bundle, photos, address, progress=False)
    service = Service(Retriever.open(bundle.path, address), ServeSettings())
    asyncio.run(service.put_photo("new", "new", encode(draw(60, 1)), {}))
    service.remove({}, item_id="item-03")
    assert service.retriever.search(encode(draw(60, 1))).matches[0].photo_id == "new"
    service.stop()
