"""Photo sets for the item distance: frozen vectors, and every distance from a query to an item, computed once.

Shapes: n queries, p photos, T items, d = embedding size.
"""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from index.search.item_distance import mean_photo
from research.claims.sets import halved
from research.claims.symbols import draw_symbols
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.images import open_image
from retrieval.images.preprocessing import center_crop_resize
from retrieval.verification.matching import inlier_pairs
from retrieval.verification.settings import VerifierSettings
from training.data.synthetic.catalogue import CATALOGUE, make_catalogue
from training.demo.run import PHOTO_SIZE, run_demo
from training.export.pretrained import Pretrained
from training.export.variants import embed_with_onnx

from .pretrained import FITTED, features_in, in_gallery, unit, vectors_of
from .verification_data import Photos, load

MODEL = "efficientnet-lite0"
TRAIN, TEST, ALL = "training partition", "outside the training partition", "all items"
NAMES = ("birds", "cars", "covers")
SYMBOLS, DRAWINGS = 1200, 6  # drawn symbols, a third of them for training, and drawings of each
TRAINING_SEEDS, TEST_SEEDS = (11, 12), (1, 2, 3, 4, 5)  # of the demo's catalogues
FEW = (1, 2)  # gallery photos per item
QUALITY, SHRUNK = 70, 0.75  # of a re-encoded copy
ASKED, VERIFIED = 6, 3  # queries of an item whose local features are compared, with the nearest photos of every item
BLOCK = 64


@dataclass(frozen=True)
class Evidence:
    """Distances (n, T) from queries to the nearest photo and to the mean photo of items; the item of each query (n,).

    `inliers` (n, T) are the most local features that agree with one of the item's nearest photos.
    """

    nearest: np.ndarray
    mean: np.ndarray
    item: np.ndarray
    inliers: np.ndarray | None = None

    @classmethod
    def between(cls, queries: np.ndarray, items: np.ndarray, gallery: np.ndarray, shown: np.ndarray) -> Evidence:
        """Return the evidence of unit vectors (n, d) of items (n,) in a gallery (p, d) that shows items (p,).

        Items are numbers 0 to T - 1.
        """
        numbers = range(int(shown.max()) + 1)
        means = np.stack([mean_photo(gallery[shown == number].astype(np.float32)) for number in numbers])
        distances = plain_distances(queries, gallery)
        nearest = np.stack([distances[:, shown == number].min(axis=1) for number in numbers], axis=1)
        return cls(nearest, plain_distances(queries, means), items)

    def of_items(self, items: np.ndarray) -> Evidence:
        """Return the evidence of the queries that show some items."""
        chosen = np.isin(self.item, items)
        inliers = None if self.inliers is None else self.inliers[chosen]
        return Evidence(self.nearest[chosen], self.mean[chosen], self.item[chosen], inliers)


@dataclass(frozen=True)
class PhotoSet:
    """Searches of a gallery with its query photos and with its own photos, each in the whole gallery."""

    name: str
    family: str  # sets of one family count once
    items: int
    searches: Evidence
    draws: Evidence
    copies: Evidence | None = None  # re-encoded photos of the gallery


def plain_distances(queries: np.ndarray, photos: np.ndarray) -> np.ndarray:
    """Return the plain distances (n, p) of unit vectors."""
    return np.asarray(np.sqrt(np.maximum(2 - 2 * queries.astype(np.float64) @ photos.astype(np.float64).T, 0)))


def photo_set(
    name: str,
    family: str,
    vectors: np.ndarray,
    items: Sequence[str],
    shown: np.ndarray,
    copies: np.ndarray | None = None,
) -> PhotoSet:
    """Return the set of photos with vectors (p, d) and items (p,); the others of the gallery flags (p,) are queries.

    `copies` are vectors of the gallery photos, encoded again.
    """
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    numbers = np.unique(items, return_inverse=True)[1]
    gallery = unit[shown], numbers[shown]
    asked, asked_items = unit[~shown], numbers[~shown]
    copied = None
    if copies is not None:
        copied = Evidence.between(copies / np.linalg.norm(copies, axis=1, keepdims=True), gallery[1], *gallery)
    return PhotoSet(
        name,
        family,
        int(numbers.max()) + 1,
        Evidence.between(asked, asked_items, *gallery),
        Evidence.between(*gallery, *gallery),
        copied,
    )


class Sets:
    """The photo sets, with some of the demo's catalogues; features and drawn photos are kept in a folder."""

    def __init__(self, data: Path, output: Path, *, demos: int = len(TEST_SEEDS), symbols: int = SYMBOLS) -> None:
        self._data, self._output, self._symbols_drawn = data, output, symbols
        self._tested, self._trained = TEST_SEEDS[:demos], TRAINING_SEEDS[: demos + 1]
        self._model = Pretrained.load(MODEL)

    def of(self, part: str) -> Iterator[PhotoSet]:
        """Yield the sets with vectors of the model as it is, of a part of their items."""
        for name in NAMES:
            photos, vectors = self._photos(name)
            yield self._of_photos(name, name, photos, vectors, in_part(photos, part), copies=part == TRAIN)
        yield from self.stores(part)
        yield self._symbols(part)
        seeds = {TRAIN: self._trained, TEST: self._tested, ALL: self._trained}[part]
        for seed in seeds:
            photos, vectors = self._photos(f"demo-{seed}")
            copies = part == TRAIN and seed == seeds[0]
            yield self._of_photos(
                f"demo photos {seed}", "demo", photos, vectors, np.ones(len(photos), bool), copies=copies
            )

    def stores(self, part: str) -> Iterator[PhotoSet]:
        """Yield grocery with each store as the gallery, and the other one's photos as queries."""
        photos, vectors = self._photos("grocery")
        for store, name in (("store_a", "grocery, a to b"), ("store_b", "grocery, b to a")):
            chosen = in_part(photos, part) & np.array([photo.source != "iconic" for photo in photos])
            copies = part == TRAIN and store == "store_a"
            yield self._of_photos(name, "grocery", photos, vectors, chosen, store=store, copies=copies)

    def few_photos(self) -> Iterator[PhotoSet]:
        """Yield birds and cars outside the training partition, with few gallery photos of each item."""
        for name, count in itertools.product(("birds", "cars"), FEW):
            photos, vectors = self._photos(name)
            counts: Counter[str] = Counter()
            few = np.ones(len(photos), dtype=bool)
            for row in np.flatnonzero(in_gallery(photos)).tolist():
                few[row] = counts[photos[row].item_id] < count
                counts[photos[row].item_id] += 1
            chosen = in_part(photos, TEST) & few
            yield self._of_photos(f"{name}, photos per item: {count}", name, photos, vectors, chosen)

    def fitted(self) -> Iterator[PhotoSet]:
        """Yield birds and cars outside the training partition, with the model fitted to the training partition."""
        for name in ("birds", "cars"):
            photos, features = self._photos(name)
            for kind, vectors in vectors_of(features, photos):
                if kind == FITTED:
                    yield self._of_photos(f"{name}, fitted", name, photos, vectors, in_part(photos, TEST))

    def own_models(self) -> Iterator[PhotoSet]:
        """Yield demos with the models that they train, of the items that these are not trained on."""
        for seed in self._tested:
            folder = self._output / "demos" / str(seed)
            photos = self._drawn(seed)
            path = self._output / f"demo-{seed}-trained.npy"
            if not path.exists():
                if not (folder / "examples").exists():
                    run_demo(folder, seed=seed)
                np.save(path, embed_with_onnx(Bundle.open(folder / "bundle").embedder(), photos)[0].vectors)
            vectors = np.load(path, allow_pickle=False)
            yield self._of_photos(f"demo {seed}, its model", "demo", photos, vectors, in_part(photos, TEST))

    def verified(self) -> Iterator[PhotoSet]:
        """Yield the training partitions of covers and grocery, and the rest of covers, with agreeing local features."""
        for name, part in (("covers", TRAIN), ("covers", TEST), ("grocery", TRAIN)):
            photos = load(name, self._data, self._output)
            photos = photos.where(in_part(photos.photos, part))
            shown = in_gallery(photos.photos)
            if name == "covers":
                yield self._verified(f"covers {part}", photos, shown)
            else:
                yield self._verified(f"grocery {part}, a to b", photos, shown)
                yield self._verified(f"grocery {part}, b to a", photos, ~shown)

    def _verified(self, name: str, photos: Photos, shown: np.ndarray) -> PhotoSet:
        """Return a set with the inliers of some query photos of each item and the nearest photos of every item."""
        numbers = np.unique(photos.items, return_inverse=True)[1]
        asked = np.concatenate([spread(np.flatnonzero(~shown & (numbers == n)), ASKED) for n in set(numbers.tolist())])
        gallery = np.flatnonzero(shown)
        distances = plain_distances(photos.vectors[asked], photos.vectors[gallery])
        settings = VerifierSettings()
        inliers = np.zeros((len(asked), int(numbers.max()) + 1), dtype=np.int64)
        for row, query in enumerate(asked.tolist()):
            order = gallery[np.argsort(distances[row], kind="stable")]
            for number in range(inliers.shape[1]):
                near = order[numbers[order] == number][:VERIFIED].tolist()
                counts = [len(inlier_pairs(photos.local[query], photos.local[photo], settings)) for photo in near]
                inliers[row, number] = max(counts)
        used = shown.copy()
        used[asked] = True
        found = photo_set(name, name, photos.vectors[used], photos.items[used], shown[used])
        return replace(found, searches=replace(found.searches, inliers=inliers[np.argsort(asked)]))

    def _photos(self, name: str) -> tuple[list[Photo], np.ndarray]:
        """Return the photos of a set, and their features (p, d)."""
        place = self._data / "data" / name / f"{name}.csv"
        photos = self._drawn(int(name.removeprefix("demo-"))) if name.startswith("demo-") else read_catalogue(place)
        return photos, features_in(self._output / f"{name}.npy", self._model, photos)

    def _drawn(self, seed: int) -> list[Photo]:
        """Return the photos of the demo's catalogue of a seed."""
        folder = self._output / f"demo-photos-{seed}"
        if not (folder / CATALOGUE).exists():
            make_catalogue(folder, size=PHOTO_SIZE, seed=seed, progress=False)
        return halved(read_catalogue(folder / CATALOGUE))

    def _of_photos(
        self,
        name: str,
        family: str,
        photos: Sequence[Photo],
        vectors: np.ndarray,
        chosen: np.ndarray,
        *,
        store: str = "store_a",
        copies: bool = False,
    ) -> PhotoSet:
        rows = np.flatnonzero(chosen)
        kept = [photos[row] for row in rows.tolist()]
        shown = in_gallery(kept) if store == "store_a" else np.array([photo.source == store for photo in kept])
        copied = None
        if copies:
            places = [photo.path for photo, flag in zip(kept, shown, strict=True) if flag]
            copied = self._kept(f"{family}-copies", lambda: [copied_image(open_image(path)) for path in places])
        return photo_set(name, family, vectors[rows], [photo.item_id for photo in kept], shown, copied)

    def symbols(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return unit vectors (p, d), items (p,) and gallery flags (p,) of the drawn symbols.

        Half of the drawings of each are the gallery.
        """
        features = self._kept("symbols", self._symbol_images)
        drawings = np.arange(len(features))
        return unit(features), (drawings // DRAWINGS).astype(str), drawings % DRAWINGS < DRAWINGS // 2

    def _symbols(self, part: str) -> PhotoSet:
        """Return the drawn symbols of a part."""
        vectors, items, shown = self.symbols()
        drawn = len(items) // DRAWINGS
        low, high = {TRAIN: (0, drawn // 3), TEST: (drawn // 3, drawn), ALL: (0, drawn)}[part]
        chosen = (items.astype(int) >= low) & (items.astype(int) < high)
        copies = None
        if part == TRAIN:
            rows = set(np.flatnonzero(chosen & shown).tolist())
            copies = self._kept(
                "symbols-copies",
                lambda: [copied_image(image) for row, image in enumerate(self._symbol_images()) if row in rows],
            )
        return photo_set("symbols", "symbols", vectors[chosen], items[chosen].tolist(), shown[chosen], copies)

    def _symbol_images(self) -> list[Image.Image]:
        """Return the drawn symbols, black on white."""
        pixels = (255 * (1 - draw_symbols(self._symbols_drawn, DRAWINGS).pixels)).round().astype(np.uint8)
        return [Image.fromarray(each).convert("RGB") for each in pixels]

    def _kept(self, name: str, draw: Callable[[], Sequence[Image.Image]]) -> np.ndarray:
        """Return the features (p, d) of images, from a file if it exists."""
        path = self._output / f"{name}.npy"
        if not path.exists():
            sight = self._model.preprocessing
            pixels = [center_crop_resize(image.convert("RGB"), sight) for image in draw()]
            blocks = [np.stack(pixels[start : start + BLOCK]) for start in range(0, len(pixels), BLOCK)]
            np.save(path, np.concatenate([self._model.features(block).numpy() for block in blocks]))
        return np.asarray(np.load(path, allow_pickle=False))


def spread(rows: np.ndarray, most: int) -> np.ndarray:
    """Return at most some of the rows, evenly spaced."""
    return np.asarray(rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int))])


def in_part(photos: Sequence[Photo], part: str) -> np.ndarray:
    """Return the mask (p,) of the photos of a part."""
    trained = np.array([photo.partition == "train" for photo in photos])
    return {TRAIN: trained, TEST: ~trained, ALL: np.ones(len(photos), dtype=bool)}[part]


def copied_image(image: Image.Image) -> Image.Image:
    """Return an image made smaller and encoded again."""
    size = max(1, round(SHRUNK * image.width)), max(1, round(SHRUNK * image.height))
    file = io.BytesIO()
    image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=QUALITY)
    return Image.open(file).convert("RGB")
