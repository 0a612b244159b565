import hashlib
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image, ImageDraw

from index.database import POINT
from index.gallery import Gallery
from index.groups import GROUP
from index.photos import CONTENT
from index.search.item_distance import ItemDistance
from retrieval.bundle.bundle import Bundle
from retrieval.cli.main import group
from retrieval.errors import CalibrationError
from retrieval.galleries.points import pack_points
from retrieval.inspect.audit import audit, findings, summary
from retrieval.inspect.duplicates import NEAR, SAME_FILE, SAME_PICTURE, is_copy
from retrieval.measuring.point import Basis, Point
from retrieval.retriever import Retriever

from ...gallery_contents import contents
from ...world import DIM, draw, encode, make_bundle

OFTEN = 4  # photos of an item


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle and a gallery with one collision, one stray and one duplicate, all planted."""
    folder = tmp_path_factory.mktemp("audit")
    bundle = make_bundle(folder, threshold=0.3)
    pictures = {f"item-{i}": [encode(draw(i, shot)) for shot in range(0, 3 * OFTEN, 3)] for i in range(6)}
    pictures["item-0"].append(encode(draw(50, 0)))  # a stray: it shows something else
    pictures["twin-of-1"] = [encode(draw(1, 30)), encode(draw(1, 33))]  # collides with item-1
    pictures["copy-of-2"] = [pictures["item-2"][0]]  # the very file
    with Gallery.create(folder / "gallery", dim=DIM, embedding_id=bundle.embedding_id) as gallery:
        for item, files in pictures.items():
            ids = [f"{item}/{number}" for number in range(len(files))]
            vectors = bundle.embedder().embed(files).vectors
            gallery.add(ids, [item] * len(ids), vectors, thumbnails=files)
    return folder


def test_it_finds_what_was_planted_and_nothing_else(folder: Path) -> None:
    with Gallery.open(folder / "gallery", read_only=True) as gallery:
        found = audit(Bundle.open(folder / "bundle"), gallery)
    assert {(p.item_id, p.other_item_id) for p in found.collisions} == {
        ("item-1", "twin-of-1"),
        ("copy-of-2", "item-2"),
    }
    assert [(p.item_id, p.other_item_id, p.kind) for p in found.duplicates] == [
        ("copy-of-2", "item-2", SAME_PICTURE),
        ("item-1", "twin-of-1", SAME_PICTURE),
    ]
    assert [s.photo_id for s in found.strays] == [f"item-0/{OFTEN}"]
    assert (found.items, found.single_photo_items) == (8, 1)


def test_copies_are_told_from_look_alikes(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, threshold=0.01)  # duplicates do not depend on the threshold
    again = io.BytesIO()
    draw(1, 0).resize((80, 80)).save(again, "JPEG", quality=60)
    variant = draw(1, 0)
    variant.paste((255, 255, 255), (0, 0, 12, 12))  # as a label in another colour
    files = {"original": encode(draw(1, 0)), "saved again": again.getvalue(), "twin": encode(variant)}
    with Gallery.create(tmp_path / "gallery", dim=DIM, embedding_id=bundle.embedding_id) as gallery:
        for item, file in [*files.items(), ("same file", files["twin"])]:
            vectors = bundle.embedder().embed([file]).vectors
            content = {CONTENT: hashlib.sha256(file).hexdigest()}
            gallery.add([f"{item}.jpg"], [item], vectors, thumbnails=[file], metadata=[content])
        found = audit(bundle, gallery)
    assert found.collisions[:1] == [replace(found.duplicates[0], kind="")]
    assert [(p.item_id, p.other_item_id, p.kind) for p in found.duplicates] == [
        ("same file", "twin", SAME_FILE),
        ("original", "saved again", SAME_PICTURE),
    ]


def test_without_thumbnails_only_files_and_distances_tell(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    vectors = bundle.embedder().embed([encode(draw(1, 0))] * 2).vectors
    with Gallery.create(tmp_path / "gallery", dim=DIM, embedding_id=bundle.embedding_id) as gallery:
        gallery.add(["a", "b"], ["one", "other"], vectors)
        assert [pair.kind for pair in audit(bundle, gallery).duplicates] == [NEAR]


def test_the_threshold_of_the_gallery_is_used(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "gallery", tmp_path / "gallery")
    bundle = Bundle.open(folder / "bundle")
    with Gallery.open(tmp_path / "gallery") as gallery:
        gallery.keep({POINT: pack_points(None, bundle, Point(0.001, "estimated", 0.05))}, "calibrate")
        found = audit(bundle, gallery)
    assert found.threshold == 0.001
    assert [(p.item_id, p.other_item_id) for p in found.collisions] == [("copy-of-2", "item-2")]


def test_it_agrees_with_the_searches(folder: Path) -> None:
    retriever = Retriever.open(folder / "bundle", folder / "gallery")
    found = audit(retriever.bundle, retriever.gallery)
    together = {frozenset((p.item_id, p.other_item_id)) for p in found.collisions}
    photo_ids, item_ids, _ = contents(retriever.gallery)
    for photo_id, item_id in zip(photo_ids, item_ids, strict=True):
        matches = retriever.search(retriever.gallery.thumbnail(photo_id)).matches  # the files themselves
        others = {match.item_id for match in matches} - {item_id}
        assert all(frozenset((item_id, other)) in together for other in others)


def test_the_item_distance_of_the_bundle_is_used(folder: Path, tmp_path: Path) -> None:
    by_items = make_bundle(tmp_path, threshold=0.3, item_distance=ItemDistance())
    with Gallery.open(folder / "gallery", read_only=True) as gallery:
        plain, found = audit(Bundle.open(folder / "bundle"), gallery), audit(by_items, gallery)
    assert [pair.distance for pair in found.collisions] != [pair.distance for pair in plain.collisions]
    assert found.duplicates == plain.duplicates
    assert found.twins == plain.twins


def test_two_ids_of_one_product_are_listed_as_twins_unless_they_are_of_one_group(folder: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(folder / "bundle")
    for shared in ("", "cups"):
        with Gallery.create(tmp_path / f"g{shared}", dim=DIM, embedding_id=bundle.embedding_id) as gallery:
            for item, noise in (("z", 1), ("other", 2), ("a", 3)):  # z and a have the same three views
                seen = range(10, 13) if item == "other" else range(3)
                vectors = np.eye(DIM)[list(seen)] + np.random.default_rng(noise).normal(0, 0.01, (3, DIM))
                vectors += np.eye(DIM)[20 if item == "other" else 21]  # what the views of one product share
                metadata = [{GROUP: shared} if shared and item != "other" else {}] * 3
                vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
                gallery.add([f"{item}{view}" for view in range(3)], [item] * 3, vectors, metadata=metadata)
            found = audit(bundle, gallery)
            told = findings(found, tmp_path / "bundle", gallery)
        assert found.twins == ([] if shared else [("a", "z")])
        assert ("0 pairs look like" if shared else "1 pair looks like") + " one item under two ids" in summary(found)
        lines = {line: photos for finding in told for line, photos in finding.entries}
        assert lines.get("a = z") == (None if shared else ("a0", "z0"))


def test_a_gallery_with_fewer_items_than_the_bundle_decides_for_has_no_audit(folder: Path, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, point=Point(0.3, "estimated", 0.05, basis=Basis(least_items=50)))
    with (
        Gallery.open(folder / "gallery", read_only=True) as gallery,
        pytest.raises(CalibrationError, match="neither the gallery nor the bundle has one"),
    ):
        audit(bundle, gallery)


def test_an_empty_gallery_is_fine(folder: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(folder / "bundle")
    with Gallery.create(tmp_path / "empty", dim=DIM, embedding_id=bundle.embedding_id) as gallery:
        assert "0 photos of 0 items" in summary(audit(bundle, gallery))


def test_the_command_line(folder: Path) -> None:
    arguments = ["audit", str(folder / "bundle"), str(folder / "gallery")]
    shown = CliRunner().invoke(group, arguments)
    assert shown.exit_code == 0, shown.output
    assert "2 pairs of items collide, 1 photo does not find its item" in shown.output
    found = json.loads(CliRunner().invoke(group, [*arguments, "--json"]).output)
    assert len(found["collisions"]) == 2


def test_the_command_ends_with_what_to_do_and_shows_pictures(folder: Path, tmp_path: Path) -> None:
    arguments = ["audit", str(folder / "bundle"), str(folder / "gallery")]
    plain = CliRunner().invoke(group, arguments).output
    assert "--report audit.html (the same with pictures)" in plain.splitlines()[-1]
    shown = CliRunner().invoke(group, [*arguments, "--report", str(tmp_path / "audit.html")]).output
    to_do = shown[shown.index("What to do:") :].splitlines()
    assert any(line.startswith("  Pairs of items with a duplicate: Merge them on the page /manage") for line in to_do)
    (strays,) = (line for line in to_do if line.startswith("  Photos that do not find their own item: Remove photos"))
    assert f"retrieval gallery remove {folder / 'gallery'} --photo PHOTO_ID" in strays
    assert to_do[-1] == f"Wrote {tmp_path / 'audit.html'}: open it in a browser."
    page = (tmp_path / "audit.html").read_text()
    stray = page[page.index("Photos that do not find their own item: 1") :]
    assert f'alt="item-0/{OFTEN}"' in stray[: stray.index("<h2>")]
    assert "<script" not in page
    assert all(source.startswith("data:image/jpeg;base64,") for source in re.findall(r'src="([^"]*)', page))


def test_a_gallery_without_findings_needs_nothing(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, threshold=0.01)
    with Gallery.create(tmp_path / "gallery", dim=DIM, embedding_id=bundle.embedding_id) as gallery:
        files = [encode(draw(item, 0)) for item in range(4)]
        gallery.add(list("abcd"), list("abcd"), bundle.embedder().embed(files).vectors, thumbnails=files)
    shown = CliRunner().invoke(group, ["audit", str(tmp_path / "bundle"), str(tmp_path / "gallery")]).output
    assert "There is nothing to do." in shown


def on_white(colour: tuple[int, int, int], *, side: int = 60, quality: int = 85) -> bytes:
    image = Image.new("RGB", (256, 256), "white")
    ImageDraw.Draw(image).rectangle((128 - side // 4, 128 - side // 2, 128 + side // 4, 128 + side // 2), fill=colour)
    ImageDraw.Draw(image).ellipse((10, 20, 90, 60), fill=(90, 90, 90))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def test_things_on_the_same_background_and_unreadable_or_flat_pictures_are_no_copies() -> None:
    flat = io.BytesIO()
    Image.new("RGB", (256, 256), (100, 100, 100)).save(flat, "JPEG")
    green = on_white((40, 120, 40))
    pictures = {
        "green": green,
        "again": on_white((40, 120, 40), quality=60),
        "red": on_white((140, 60, 40)),
        "flat": flat.getvalue(),
        "flat too": flat.getvalue(),
        "cut": green[: len(green) // 2],
        "empty": b"",
        "text": b"no picture",
    }
    assert is_copy(pictures.get, "green", "again")
    for other in ("red", "flat", "cut", "empty", "text", "missing"):
        assert not is_copy(pictures.get, "green", other)
    assert not is_copy(pictures.get, "flat", "flat too")
