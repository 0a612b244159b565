"""Photos of one version of a gallery on Milvus, for searches and draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from index.errors import GalleryError
from index.groups import number_of
from index.photos import CONTENT, NONE, ItemFacts, Keys, hashed, sampled
from index.search.details import Points, Verifier
from index.search.distance import Floats, Rows, plain_distance
from index.search.item_distance import mean_photo
from index.snapshot import FIRST_FETCH, MEANS, Facts

from .collections import ROW, Collections, fields_of

MOST = 16_384  # photos that are found per query
SLACK = 1e-5  # float32 error of a cosine, in addition to the error due to the dimension
LOCAL = "Use a local gallery"

Hit = tuple[dict[str, Any], float]  # fields of a photo, and its distance


class MilvusPhotos:
    """Photos of one version, numbered in the order in which they are first read: all photos for draws, else hits."""

    def __init__(self, collections: Collections, dim: int, mark: tuple[int, int]) -> None:
        self._store, self._dim, self.mark = collections, dim, mark  # number of photos, and the state
        self.ids: list[str] = []
        self.numbers: dict[str, int] = {}  # of each item
        self.items = np.zeros(0, dtype=np.int32)  # (n,) item number of each photo
        self._same_picture: Callable[[str, str], bool] | None = None
        self._positions: dict[str, int] = {}
        self._read: dict[str, tuple[str, str, dict[str, Any]]] = {}  # photos that have been read
        self._facts: dict[int, tuple[Rows, Facts]] = {}

    @property
    def size(self) -> int:
        """The number of photos."""
        return self.mark[0]

    @property
    def item_count(self) -> int:
        """The number of items that have been seen."""
        return len(self.numbers)

    def changes_since(self, mark: Sequence[int]) -> int:
        """Return the difference in the number of photos, or 1 if it is 0 but photos changed."""
        return 0 if tuple(mark[:2]) == self.mark else max(1, abs(self.size - mark[0]))

    def number(self, rows: Sequence[tuple[str, str]]) -> list[int]:
        """Return the positions of photos, given as photo_id and item_id."""
        new = [row for row in rows if row[0] not in self._positions]
        self._positions |= {photo_id: len(self.ids) + place for place, (photo_id, _) in enumerate(new)}
        self.ids += [photo_id for photo_id, _ in new]
        items = [self.numbers.setdefault(item, len(self.numbers)) for _, item in new]
        self.items = np.concatenate([self.items, np.array(items, dtype=np.int32)])
        return [self._positions[photo_id] for photo_id, _ in rows]

    @property
    def live(self) -> NDArray[np.bool_]:
        """A mask (n,) of the live photos: all of them."""
        return np.ones(len(self.ids), dtype=bool)

    def items_at(self, positions: Rows) -> Rows:
        """Return the numbers of the items of photos, NONE for NONE."""
        return np.where(positions == NONE, NONE, self.items[positions]) if len(self.items) else positions

    def positions(self, photo_ids: Sequence[str]) -> Rows:
        """Return the positions of photos, NONE for those that are not here."""
        return np.array([self._positions.get(photo_id, NONE) for photo_id in photo_ids], dtype=np.int64)

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that are here."""
        return {item: self.numbers[item] for item in item_ids if item in self.numbers}

    def keys_of(self, positions: Rows) -> Keys:
        """Return the hashes of the ids of photos."""
        return hashed(self.ids[position] for position in positions.tolist())

    def sample(self, most: int, *, excluded: Collection[int] = ()) -> Rows:
        """Return the positions of up to `most` photos, chosen by the hashes of their ids (`sampled`)."""
        positions = np.flatnonzero(~np.isin(self.items, list(excluded)))
        items = self.items[positions]
        return positions[sampled(items, hashed(self.numbers)[items], self.keys_of(positions))[:most]]

    def with_pictures(self, same_picture: Callable[[str, str], bool]) -> MilvusPhotos:
        """Return these photos with a function that compares the pictures of two, for `copies`."""
        self._same_picture = same_picture
        return self

    def copies(self, first: Rows, second: Rows) -> NDArray[np.bool_]:
        """Return whether photos are copies: the same file or, where pictures can be compared, the same picture."""
        pairs = zip(self.photos_at(first), self.photos_at(second), strict=True)
        return np.array([self._is_copy(*pair) for pair in pairs], dtype=bool)

    def _is_copy(self, first: tuple[str, str, dict[str, Any]], second: tuple[str, str, dict[str, Any]]) -> bool:
        content = first[2].get(CONTENT)
        if content is not None and content == second[2].get(CONTENT):
            return True
        return self._same_picture is not None and self._same_picture(first[0], second[0])

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors (p, d) at some positions."""
        ids = [self.ids[position] for position in positions.tolist()]
        rows = self._store.get(ids, [*ROW, "vector"])
        self._read.update({photo_id: fields_of(row) for photo_id, row in rows.items()})
        return np.array([rows[name]["vector"] for name in ids], dtype=np.float32).reshape(-1, self._dim)

    def photos_at(self, positions: Rows) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of the photos at some positions."""
        ids = [self.ids[position] for position in positions.tolist()]
        missing = [photo_id for photo_id in ids if photo_id not in self._read]
        self._read.update({name: fields_of(row) for name, row in self._store.get(missing, ROW).items()})
        return [self._read[photo_id] for photo_id in ids]

    def photo(self, position: int) -> tuple[str, str, dict[str, Any]]:
        """Return photo_id, item_id and metadata of the photo at a position."""
        return self.photos_at(np.array([position]))[0]

    def features(self, positions: Rows) -> NoReturn:  # noqa: ARG002
        """Raise GalleryError: a gallery on Milvus keeps no features."""
        raise GalleryError(
            f"{self._store.address} keeps no features, like every gallery on Milvus",
            remedy=f"{LOCAL}, or a bundle without verification",
        )

    def votes(self, verifier: Verifier, asked: Points) -> NoReturn:  # noqa: ARG002
        """Raise GalleryError, as `features` does."""
        self.features(np.zeros(0, np.int64))

    def photos_of(self, items: Sequence[int]) -> list[Rows]:
        """Return the positions of the photos of each of some items, by number, ascending."""
        return [positions for positions, _ in self._looked_at(items)]

    def facts_of(self, items: Rows) -> ItemFacts:
        """Return the mean photos and the groups of items, by number."""
        facts = [facts for _, facts in self._looked_at(items.tolist())]
        means = np.array([mean for mean, _ in facts]).reshape(len(facts), self._dim)
        return ItemFacts(means, np.array([group for _, group in facts], dtype=np.int64))

    def _looked_at(self, items: Sequence[int]) -> list[tuple[Rows, Facts]]:
        """Return the positions of the photos of each item, with its mean photo and the number of its group."""
        if len(self._facts) + len(items) > MEANS:
            self._facts.clear()
        missing = [item for item in dict.fromkeys(items) if item not in self._facts]
        names = {number: name for name, number in self.numbers.items()} if missing else {}
        rows: dict[str, list[Any]] = {names[item]: [] for item in missing}
        for row in self._store.walk_items([*ROW, "vector"], [names[item] for item in missing]):
            rows[row["item_id"]].append(row)
        for item in missing:
            own = sorted(rows[names[item]], key=lambda row: str(row["photo_id"]))
            positions = self.number([(row["photo_id"], row["item_id"]) for row in own])
            self._read.update({row["photo_id"]: fields_of(row) for row in own})
            vectors = np.array([row["vector"] for row in own], dtype=np.float32)
            facts = mean_photo(vectors), number_of(names[item], own[0]["metadata"])
            self._facts[item] = np.array(sorted(positions)), facts
        return [self._facts[item] for item in items]

    def nearest(self, vectors: NDArray[np.float32], k: int, *, only: Any = None) -> tuple[Rows, Floats]:
        """Return the nearest photo of each of the k nearest items, as `Photos.nearest`.

        `only` is a condition in Milvus's own language.
        """
        nearest, distances = np.full((len(vectors), k), NONE), np.full((len(vectors), k), np.inf)
        for row, best in enumerate(self._hits(vectors, k, only or "")):
            self._read.update({fields["photo_id"]: fields_of(fields) for fields, _ in best})
            nearest[row, : len(best)] = self.number([(fields["photo_id"], fields["item_id"]) for fields, _ in best])
            distances[row, : len(best)] = [apart for _, apart in best]
        return nearest, distances

    def _hits(self, vectors: NDArray[np.float32], k: int, condition: str) -> list[list[Hit]]:
        """Return the nearest photo of each of the k nearest items and its distance, for unit vectors (n, d).

        Milvus proposes candidates until no other photo can be nearer, or until it returns no more of them.
        """
        answers: list[list[Hit]] = [[] for _ in vectors]
        waiting, fetch = list(range(len(vectors))), FIRST_FETCH + 4 * k
        while waiting:
            fetch, again = min(fetch, MOST), []
            for query, hits in zip(waiting, self._store.candidates(vectors[waiting], fetch, condition), strict=True):
                distances, limit = _measured(hits, vectors[query], fetch)
                best = answers[query] = _by_item(hits, distances, k, limit)
                if not (len(best) == k or limit == np.inf or fetch == MOST):
                    again.append(query)
            waiting, fetch = again, 4 * fetch
        return answers


def _measured(hits: Sequence[Any], vector: NDArray[np.float32], fetch: int) -> tuple[Floats, float]:
    """Return the distances of hits, and a lower bound for the distance of any other photo."""
    if not hits:
        return np.zeros(0), np.inf
    distances = plain_distance(vector[None], np.array([hit["entity"]["vector"] for hit in hits], dtype=np.float32))
    if len(hits) < fetch:
        return distances, np.inf
    cosine = float(hits[-1]["distance"]) + 2 * (SLACK + len(vector) * 2.0**-24)
    return distances, math.sqrt(max(0.0, 2 - 2 * cosine))


def _by_item(hits: Sequence[Any], distances: Floats, k: int, limit: float) -> list[Hit]:
    """Return the nearest photo of each of the k nearest items whose distance is below the limit."""
    best: dict[str, Hit] = {}
    for i in sorted(range(len(hits)), key=lambda i: (distances[i], hits[i]["entity"]["photo_id"])):
        entity = hits[i]["entity"]
        if distances[i] >= limit or len(best) == k:
            break
        best.setdefault(entity["item_id"], (entity, float(distances[i])))
    return list(best.values())
