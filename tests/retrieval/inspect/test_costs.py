"""The cost of a pair of look-alikes is the TPIR that is gained when they become one item."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from index.gallery import Gallery
from index.groups import GROUP
from retrieval.bundle.bundle import Bundle
from retrieval.galleries.measured import draw_gallery
from retrieval.galleries.points import GalleryPoint
from retrieval.inspect.alike import look_alikes
from retrieval.measuring.draws import OWN
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.rates import Mated
from retrieval.metrics.identification import identification_rates

from ...world import draw, encode


@pytest.fixture
def twins(filled_copy: Path) -> Path:
    """Add a look-alike to each of three items of the filled gallery."""
    bundle = Bundle.open(filled_copy / "bundle")
    with Gallery.open(filled_copy / "gallery") as gallery:
        for item in (35, 31, 33):
            files = [encode(Image.blend(draw(item, n), draw(item + 50, n), 0.1)) for n in range(40, 43)]
            vectors = bundle.embedder().embed(files).vectors
            gallery.add([f"twin-{item}-{n}" for n in range(3)], [f"twin-{item}"] * 3, vectors, thumbnails=files)
    return filled_copy


def tpir(bundle: Bundle, gallery: Gallery) -> float:
    """Return the TPIR of a gallery whose draws are all made again, at the target of its threshold."""
    draws, point = draw_gallery(bundle, gallery)[1], GalleryPoint(bundle, gallery).point
    limit = DrawnDistances.of(draws.sources, shift=point.shift).limit(point.target_fpir, certified=False)
    mated = Mated.of({OWN: draws.get(OWN)}, gallery_items=gallery.items)
    assert limit is not None
    assert mated is not None
    return identification_rates(mated.scores, limit).tpir


def test_the_cost_is_the_gain_when_the_pair_is_merged_and_the_most_costly_comes_first(twins: Path) -> None:
    bundle = Bundle.open(twins / "bundle")
    with Gallery.open(twins / "gallery") as gallery:
        pairs, before = look_alikes(bundle, gallery), tpir(bundle, gallery)
        costs = [pair.cost for pair in pairs if pair.why == "close"]
        assert len(costs) >= 3
        assert costs == sorted(costs, key=lambda cost: -(cost or 0))
        for pair in pairs[:3]:
            ids, items, abouts = zip(*gallery.photos(pair.other_item_id), strict=True)
            gallery.update(ids, [pair.item_id] * len(ids), list(abouts))
            assert pair.cost == pytest.approx(tpir(bundle, gallery) - before, abs=0.01)
            gallery.update(ids, items, list(abouts))


def test_pairs_of_one_group_and_items_that_are_gone_are_no_look_alikes(twins: Path) -> None:
    bundle = Bundle.open(twins / "bundle")
    with Gallery.open(twins / "gallery") as gallery:
        rows = [*gallery.photos("31"), *gallery.photos("twin-31")]
        ids, items, abouts = zip(*rows, strict=True)
        gallery.update(ids, items, [{**about, GROUP: "one"} for about in abouts])
        gallery.remove(item_ids=["twin-33"])
        found = {item for pair in look_alikes(bundle, gallery) for item in (pair.item_id, pair.other_item_id)}
    assert "twin-35" in found
    assert not {"twin-31", "twin-33"} & found
