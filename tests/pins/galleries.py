"""The ten galleries: six of photos, four of vectors by a stronger model. Five have more than 3,000 photos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from index.gallery import Gallery

from ..prints import cover_verifier, draw_cover, write_covers
from ..world import DIM as COLOURS
from ..world import SIZE, shuffled, write_model
from . import adapter, models
from .shops import Picture, Query, Shop, Split, point_of, read_pictures, write_table

GIVEN = 1.15  # the threshold of a bundle `given`: some queries match by it and some do not
WINDOWS = {"boxes": "windows"}
TWO_BOXES = {"boxes": [(0, 0, 100, 120), (50, 30, 160, 150)]}
TWO_PICTURES = {"boxes": [(0, 0, models.SIDE, models.SIDE), (models.SIDE, 0, 2 * models.SIDE, models.SIDE)]}


def colour_shop(folder: Path, *, files: Mapping[str, bytes] = adapter.NOTHING_FITTED) -> Shop:
    """Return a shop whose model sees the mean colours of photos, with an empty place for the gallery."""
    model = write_model(folder / "colours.onnx").read_bytes()
    return _shop(folder, GIVEN, files, partial(adapter.write, folder, model=model, size=SIZE, dim=COLOURS))


def vector_shop(
    folder: Path,
    *,
    given: float = GIVEN,
    files: Mapping[str, bytes] = adapter.NOTHING_FITTED,
    nearest_photo: bool = False,
) -> Shop:
    """Return a shop whose model reads vectors from pictures, with an empty place for the gallery."""
    write = partial(adapter.write, folder, model=models.picture_reader(), size=models.SIDE, dim=models.DIM)
    return _shop(folder, given, files, partial(write, nearest_photo=nearest_photo))


def _shop(folder: Path, given: float, files: Mapping[str, bytes], write: Callable[..., Path]) -> Shop:
    few = adapter.without_draws(files)
    return Shop(
        bundle=write("bundle", threshold=None, files=files),
        given=write("given", threshold=given, files=few),
        bare=write("bare", threshold=None, files=few),
        gallery=folder / "gallery",
    )


def photos(folder: Path, shared: Path) -> Shop:
    """Index half of 5,500 photos, then all with changes, which leaves the threshold as it is."""
    shop, split = colour_shop(folder), Split.of(read_pictures(shared / "data", "grocery"))
    stay = [replace(photo, group="") for photo in split.stay]
    items = sorted({photo.item for photo in stay})
    few = [photo for photo in stay if photo.item in items[::2]][:2600]
    moved = [replace(photo, item=items[3]) for photo in few[:20]]
    names = {photo.name for photo in few}
    every = [*few[60:], *moved, *(photo for photo in stay if photo.name not in names)]  # 40 photos are gone
    shop.points["first"] = shop.index(write_table(folder / "few.csv", few))
    shop.points["synchronized"] = shop.index(write_table(folder / "every.csv", every), "--prune")
    image = split.held[0][0].image
    shop.queries = split.queries(Query("two boxes", [image], TWO_BOXES), Query("windows", [image], WINDOWS))
    return shop


def folds(folder: Path, shared: Path) -> Shop:
    """Index photos of items that the model was cross-fitted on, and of a few that it was not."""
    split = Split.of(read_pictures(shared / "data", "birds")[:1080], strangers=6)
    items = sorted({photo.item for photo in split.stay})
    fold_of = {item: number % models.FOLDS for number, item in enumerate(items[:64])}
    fitted = {Path(str(photo.image)): photo.item for photo in split.stay if photo.item in fold_of}
    files = adapter.fold_files(fold_of, fitted, folds=models.FOLDS, model=models.fold_models(folder))
    shop = colour_shop(folder, files=files)
    merged = [replace(photo, item=items[0]) if photo.item == items[1] else photo for photo in split.stay]
    shop.points["first"] = shop.index(write_table(folder / "photos.csv", merged))
    shop.points["at 0.15"] = shop.calibrate("--target-fpir", "0.15", "--dry-run")
    shop.points["certified"] = shop.calibrate("--certify", "--dry-run")
    shop.queries = split.queries(Query("two boxes", [split.held[0][0].image], TWO_BOXES))
    return shop


def verified(folder: Path, _: Path) -> Shop:
    """Index drawn covers, whose details are compared."""
    shop = colour_shop(folder, files=adapter.verified_files(cover_verifier().pack()))
    table = write_covers(folder / "photos", items=range(26), photos=range(2))
    shop.points["first"] = shop.index(table)
    shop.points["at 0.2"] = shop.calibrate("--target-fpir", "0.2", "--dry-run")
    for item in (*range(12), *range(200, 210)):
        draw_cover(item, 5).save(folder / f"{item}.png")
    shop.queries = [
        *(Query(f"known {item}", [folder / f"{item}.png"]) for item in range(12)),
        *(Query(f"unknown {item}", [folder / f"{item}.png"]) for item in range(200, 210)),
        *(Query(f"copy {item}", [table / f"cover-{item:02d}" / "0.png"]) for item in range(3)),
        *(Query(f"2 photos {item}", [folder / f"{item}.png", folder / f"{item + 1}.png"]) for item in (0, 200)),
        *(Query(f"box {item}", [folder / f"{item}.png"], {"bbox": (0, 0, 150, 150)}) for item in range(3)),
        Query("two boxes", [folder / "4.png"], TWO_BOXES),
    ]
    return shop


def groups(folder: Path, shared: Path) -> Shop:
    """Index items in groups, one item under two ids, copies of files and of pictures in other items, and prices."""
    shop, split = colour_shop(folder), Split.of(read_pictures(shared / "data", "grocery"), seed=4)
    stay = split.stay[:1500]
    first, second, third = sorted({photo.item for photo in stay})[10:40:10]
    stay = [replace(p, item=f"{p.item} again") if p.item == first and n % 2 else p for n, p in enumerate(stay)]
    files = [replace(photo, name=f"same {photo.name}", item=second) for photo in stay[:12]]
    (folder / "saved").mkdir()
    saved = []
    for number, photo in enumerate(stay[20:32]):
        place = folder / "saved" / f"{number}.jpg"
        opened = Image.open(Path(str(photo.image)))
        opened.resize((opened.width * 9 // 10, opened.height * 9 // 10)).save(place, quality=80)
        saved.append(Picture(f"saved {photo.name}", third, place))
    every = [*stay, *files, *saved]
    prices = [len(photo.name) % 7 for photo in every]
    shop.points["first"] = shop.index(write_table(folder / "photos.csv", every, price=prices))
    shop.points["at 0.1"] = shop.calibrate("--target-fpir", "0.1", "--dry-run")
    image = split.held[0][0].image
    where = Query("filtered", [image], {"where": "price < 3"})
    shop.queries = split.queries(where, Query("two boxes", [image], TWO_BOXES))
    return shop


def labelled(folder: Path, shared: Path) -> Shop:
    """Set the threshold with labelled photos, of which some show items that are not there."""
    pictures = read_pictures(shared / "data", "birds")
    shop, split = colour_shop(folder), Split.of(pictures, strangers=60, held=100, seed=5)
    shop.points["first"] = shop.index(write_table(folder / "photos.csv", split.stay))
    known = [photo for some in split.held[8:] for photo in some[:2]]
    unknown = [replace(photo, item="") for some in split.strangers[8:] for photo in some[:1]]
    grouped = [replace(some[1], item="", group=f"of {some[0].item}") for some in split.strangers[8:20]]
    copies = [split.stay[0]]
    queries = write_table(folder / "labelled.csv", shuffled([*known, *unknown, *grouped, *copies]))
    shop.points["certified"] = shop.calibrate("--certify", "--target-fpir", "0.2", "--queries", queries, "--dry-run")
    shop.points["labelled"] = shop.calibrate("--queries", queries)
    shop.queries = split.queries(Query("two boxes", [split.held[0][0].image], TWO_BOXES))
    return shop


def windows(folder: Path, shared: Path) -> Shop:
    """Index photos with their windows, so that searches with windows decide."""
    pictures = read_pictures(shared / "data", "cars")[:1200]
    shop, split = colour_shop(folder), Split.of(pictures, seed=6)
    shop.points["first"] = shop.index(write_table(folder / "photos.csv", split.stay), "--windows")
    shop.points["at 0.2"] = shop.calibrate("--target-fpir", "0.2")
    seen = [*(some[0] for some in split.held[:2]), split.strangers[0][0]]
    shop.queries = split.queries(
        *(Query(f"windows of {photo.name}", [photo.image], WINDOWS) for photo in seen),
        Query("two boxes", [seen[0].image], TWO_BOXES),
    )
    return shop


def read_vectors(shared: Path, *names: str, step: int = 1) -> list[Picture]:
    """Return the photos of sets of vectors, with numbers as photo ids and the set in the item ids."""
    found: list[Picture] = []
    for name in names:
        with np.load(shared / "vectors" / f"clip_{name}.npz") as file:
            vectors, items = file["vectors"].astype(np.float32)[::step], file["items"][::step].tolist()
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        for vector, item in zip(vectors, items, strict=True):
            label = f"{name}-{item}" if len(names) > 1 else str(int(item[1:]))
            found.append(Picture(str(len(found)), label, models.picture(vector), vector))
    return found


def fill(shop: Shop, pictures: Sequence[Picture]) -> None:
    """Create the gallery if it is not there, and add pictures by their vectors, in three parts."""
    if not shop.gallery.exists():
        Gallery.create(shop.gallery, dim=models.DIM, embedding_id=adapter.embedding_id(shop.bundle)).close()
    with Gallery.open(shop.gallery) as gallery:
        for part in range(3):
            some = pictures[part::3]
            vectors = np.array([picture.vector for picture in some])
            metadata = [{"group": picture.group} if picture.group else {} for picture in some]
            gallery.add([p.name for p in some], [p.item for p in some], vectors, metadata=metadata)


def vector_queries(split: Split) -> list[Query]:
    """Return the queries of a gallery of vectors."""
    seen = [split.held[0][0].image, split.strangers[0][0].image]
    return split.queries(Query("two boxes", [np.hstack([np.asarray(image) for image in seen])], TWO_PICTURES))


def bursts(folder: Path, shared: Path) -> Shop:
    """Fill by vectors of 4,040 photos in bursts of near-copies; a third of the items are in groups."""
    shop, split = vector_shop(folder), Split.of(read_vectors(shared, "actions"), seed=7)
    grouped = [replace(p, group=f"g{int(p.item) // 5}") if int(p.item) % 3 == 0 else p for p in split.stay]
    fill(shop, grouped)
    shop.points["first"] = shop.calibrate()
    shop.queries = vector_queries(split)
    return shop


def uneven(folder: Path, shared: Path) -> Shop:
    """Fill by vectors of 4,096 photos, 20 to 129 of an item; later, remove some photos and items."""
    shop, split = vector_shop(folder), Split.of(read_vectors(shared, "flowers"), seed=8)
    fill(shop, split.stay)
    with Gallery.open(shop.gallery) as gallery:
        gallery.remove(photo_ids=[photo.name for photo in split.stay[40:3000:17]])
        gallery.remove(item_ids=["7", "31"])
        some = split.stay[5:25]
        gallery.update([photo.name for photo in some], [photo.item for photo in some], [{"seen": True}] * len(some))
    shop.points["first"] = shop.calibrate("--target-fpir", "0.1")
    shop.queries = vector_queries(split)
    return shop


def mixed(folder: Path, shared: Path) -> Shop:
    """Fill by vectors of two sets, with calibration photos in the bundle and labelled photos of a third set."""
    others = [replace(photo, name=f"texture {photo.name}") for photo in read_vectors(shared, "textures")]
    split = Split.of(read_vectors(shared, "caltech", "cars"), held=40, seed=9)
    photos = [replace(photo, item=f"texture {photo.item}") for photo in others if int(photo.item) < 22]
    photos += [replace(p, name=f"calibration {p.name}") for some in split.held[8:20] for p in some]
    sides = [(np.array([p.vector for p in s]), [p.name for p in s], [p.item for p in s]) for s in _sides(photos)]
    shop = vector_shop(folder, files=adapter.calibration_files(*sides))
    fill(shop, split.stay)
    shop.points["first"] = shop.calibrate()
    shown = [photo for some in split.held[20:] for photo in some[:2]]
    shown += [replace(p, item="", group=f"t{p.item}") for p in others if int(p.item) >= 22][::6]
    (folder / "labelled").mkdir()
    saved = [replace(photo, image=folder / "labelled" / f"{number}.png") for number, photo in enumerate(shown)]
    for photo, place in zip(shown, saved, strict=True):
        Image.fromarray(np.asarray(photo.image)).save(Path(str(place.image)))
    shop.points["labelled"] = shop.calibrate("--queries", write_table(folder / "labelled.csv", shuffled(saved)))
    shop.queries = vector_queries(split)
    return shop


def _sides(photos: Sequence[Picture]) -> tuple[list[Picture], list[Picture]]:
    """Return photos as queries and reference, in turns."""
    return list(photos[::2]), list(photos[1::2])


def many(folder: Path, shared: Path) -> Shop:
    """Fill by vectors of five sets, searched by the nearest photo alone; enough items for a certificate.

    The threshold of half of the items is tightened when the others are there too.
    """
    pictures = read_vectors(shared, "actions", "cars", "flowers", "caltech", "textures", step=2)
    shop, split = vector_shop(folder, given=0.42, nearest_photo=True), Split.of(pictures, seed=10)
    first = set(sorted({photo.item for photo in split.stay})[::2])
    fill(shop, [photo for photo in split.stay if photo.item in first])
    shop.points["half"] = shop.calibrate("--target-fpir", "0.1", "--certify")
    fill(shop, [photo for photo in split.stay if photo.item not in first])
    shop.points["tightened"] = point_of(adapter.tighten(shop.bundle, shop.gallery))
    shop.points["first"] = shop.calibrate()
    shop.queries = vector_queries(split)
    return shop


GALLERIES: dict[str, Callable[[Path, Path], Shop]] = {
    recipe.__name__: recipe
    for recipe in (photos, folds, verified, groups, labelled, windows, bursts, uneven, mixed, many)
}
