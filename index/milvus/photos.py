"""Photos of one version of a gallery on Milvus, for searches and draws.

A search looks at the nearest photos that one request returns. Where they show too few items, those with the nearest
means are rivals as well: an item without a photo in the list counts as far as the last one, or as its average photo
where that is nearer. This makes other items farther than a search of all photos would, never nearer. Draws look on
until enough items are found.
Shapes: n queries, k items, d = embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from index.errors import GalleryError
from index.photos import CONTENT, NONE, Around, ItemFacts, Keys, hashed, sampled
from index.search.details import Points, Verifier
from index.search.distance import Floats, Rows, plain_distance
from index.search.item_distance import CANDIDATES, may_be_nearer, unseen_nearest
from index.snapshot import FIRST_FETCH, MEANS

from .collections import FLAT, MOST, ROW, Collections, Level, fields_of
from .items import SPREAD, Item

SLACK = 1e-5  # float32 error of a cosine, in addition to the error due to the dimension
LOCAL = "Use a local gallery"
LISTED, UNSEEN = 130, 64  # photos and items that a search asks for
POOL = ThreadPoolExecutor(8, thread_name_prefix="milvus")  # of requests that are made at the same time

Hit = tuple[dict[str, Any], float]  # fields of a photo, and its distance


class MilvusPhotos:
    """Photos of one version, numbered in the order in which they are first read."""

    def __init__(self, collections: Collections, facts: dict[str, Any], level: Level) -> None:
        self._store, self._level = collections, level
        index = facts["index"]
        self._kinds = {collections.photos: index["kind"], collections.items: index.get("items", FLAT)}
        self.mark = int(facts["photos"]), int(facts["state"])
        self._item_count = int(facts["items"])
        self.ids: list[str] = []
        self.item_names: list[str] = []  # by number
        self.numbers: dict[str, int] = {}  # of each item that was read
        self._items: list[int] = []  # number of the item of each photo
        self._same_picture: Callable[[str, str], bool] | None = None
        self._positions: dict[str, int] = {}
        self._read: dict[str, tuple[str, str, dict[str, Any]]] = {}  # photos that have been read
        self._rows: dict[str, Any] = {}  # rows of items that have been read

    @property
    def size(self) -> int:
        """The number of photos."""
        return self.mark[0]

    @property
    def item_count(self) -> int:
        """The number of items."""
        return self._item_count

    def changes_since(self, mark: Sequence[int]) -> int:
        """Return the difference in the number of photos, or 1 if it is 0 but photos changed."""
        return 0 if tuple(mark[:2]) == self.mark else max(1, abs(self.size - mark[0]))

    def number(self, rows: Sequence[tuple[str, str]]) -> list[int]:
        """Return the positions of photos, given as photo_id and item_id."""
        for photo_id, item in rows:
            if photo_id not in self._positions:
                self._positions[photo_id] = len(self.ids)
                self.ids.append(photo_id)
                self._items.append(self._number_of(item))
        return [self._positions[photo_id] for photo_id, _ in rows]

    def _number_of(self, item: str) -> int:
        if item not in self.numbers:
            self.numbers[item] = len(self.item_names)
            self.item_names.append(item)
        return self.numbers[item]

    def items_at(self, positions: Rows) -> Rows:
        """Return the numbers of the items of photos, NONE for NONE."""
        places = positions.ravel().tolist()
        numbers = [NONE if place == NONE else self._items[place] for place in places]
        return np.array(numbers, dtype=np.int64).reshape(positions.shape)

    def positions(self, photo_ids: Sequence[str]) -> Rows:
        """Return the positions of photos, NONE for those that are not here."""
        self._remember(self._store.get(self._unread(photo_ids), ROW, self._level).values())
        return np.array([self._positions.get(photo_id, NONE) for photo_id in photo_ids], dtype=np.int64)

    def _unread(self, photo_ids: Sequence[str]) -> list[str]:
        return [photo_id for photo_id in dict.fromkeys(photo_ids) if photo_id not in self._read]

    def _remember(self, rows: Any) -> None:
        photos = [fields_of(row) for row in rows]
        self._read.update({photo[0]: photo for photo in photos})
        self.number([photo[:2] for photo in photos])

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that are here."""
        known = self._known(item_ids)
        return {item: self._number_of(item) for item in item_ids if item in known}

    def keys_of(self, positions: Rows) -> Keys:
        """Return the hashes of the ids of photos."""
        return hashed(self.ids[position] for position in positions.tolist())

    def sample(self, most: int, *, excluded: Collection[int] = ()) -> Rows:
        """Return the positions of up to `most` photos, chosen by the hashes of their ids (`sampled`)."""
        gone = {self.item_names[number] for number in excluded}
        counts = self._sampled_items(min(most, self.size), gone)
        rows = list(self._store.photos_of(counts, ROW, self._level))
        items, photos = [row["item_id"] for row in rows], [row["photo_id"] for row in rows]
        order = sampled(np.unique(items, return_inverse=True)[1], hashed(items), hashed(photos))[:most]
        self._remember([rows[place] for place in order.tolist()])
        return self.positions([photos[place] for place in order.tolist()])

    def _sampled_items(self, most: int, gone: Collection[str]) -> dict[str, int]:
        """Return the up to `most` items with the smallest hashes, and the number of photos of each."""
        wanted, whole = most + len(gone), 2 ** (64 - SPREAD)
        share = min(1.0, (1.2 * wanted + 100) / max(1, self._item_count))
        while True:
            rows = self._store.pages(
                *(self._store.items, ["item_id", "photos"], int(share * self._item_count) + 1, self._level),
                until=whole if share == 1 else int(share * whole),
            )
            counts = {row["item_id"]: int(row["photos"]) for row in rows if row["item_id"] not in gone}
            if len(counts) >= most or share == 1:
                break
            share = min(1.0, 2 * share)
        names = list(counts)
        order = np.argsort(hashed(names), kind="stable")[:most].tolist()
        return {names[place]: counts[names[place]] for place in order}

    def with_pictures(self, same_picture: Callable[[str, str], bool]) -> MilvusPhotos:
        """Return these photos with a function that compares the pictures of two, for `copies`."""
        self._same_picture = same_picture
        return self

    def copies(self, first: Rows, second: Rows) -> NDArray[np.bool_]:
        """Return whether photos are copies: the same file or, where pictures can be compared, the same picture."""
        pairs = list(zip(self.photos_at(first), self.photos_at(second), strict=True))
        contents = [(one[2].get(CONTENT), other[2].get(CONTENT)) for one, other in pairs]
        same = [one is not None and one == other for one, other in contents]
        if self._same_picture is not None:
            unknown = [place for place, is_same in enumerate(same) if not is_same]
            ids = {photo[0] for place in unknown for photo in pairs[place]}
            with self._store.thumbnails_of(sorted(ids), self._level):
                for place in unknown:
                    same[place] = self._same_picture(pairs[place][0][0], pairs[place][1][0])
        return np.array(same, dtype=bool)

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors (p, d) at some positions."""
        ids = [self.ids[position] for position in positions.tolist()]
        rows = self._store.get(list(dict.fromkeys(ids)), [*ROW, "vector"], self._level)
        self._remember(rows.values())
        return np.array([rows[name]["vector"] for name in ids], dtype=np.float32).reshape(-1, self._store.dim)

    def photos_at(self, positions: Rows) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of the photos at some positions."""
        ids = [self.ids[position] for position in positions.tolist()]
        self.positions(ids)
        return [self._read[photo_id] for photo_id in ids]

    def photo(self, position: int) -> tuple[str, str, dict[str, Any]]:
        """Return photo_id, item_id and metadata of the photo at a position."""
        return self.photos_at(np.array([position]))[0]

    def features(self, positions: Rows) -> NoReturn:  # noqa: ARG002
        """Raise GalleryError: a gallery on Milvus keeps no features."""
        raise GalleryError(
            f"{self._store.client.address} keeps no features, like every gallery on Milvus",
            remedy=f"{LOCAL}, or a bundle without verification",
        )

    def votes(self, verifier: Verifier, asked: Points) -> NoReturn:  # noqa: ARG002
        """Raise GalleryError, as `features` does."""
        self.features(np.zeros(0, np.int64))

    def photos_of(self, items: Sequence[int]) -> list[Rows]:
        """Return the positions of the photos of each of some items, by number, ascending."""
        names = [self.item_names[item] for item in items]
        known, own = self._known(names), dict[str, list[str]]()
        counts = {name: int(row["photos"]) for name, row in known.items()}
        rows = list(self._store.photos_of(counts, ROW, self._level))
        self._remember(rows)
        for row in rows:
            own.setdefault(row["item_id"], []).append(row["photo_id"])
        places = {name: sorted(self._positions[photo_id] for photo_id in ids) for name, ids in own.items()}
        return [np.array(places.get(name, []), dtype=np.int64) for name in names]

    def facts_of(self, items: Rows) -> ItemFacts:
        """Return the mean photos and the groups of items, by number."""
        names = [self.item_names[item] for item in items.tolist()]
        known = self._known(names)
        missing = {name for name in names if name not in known}
        if missing:  # a change that was not finished, or that another process makes now
            raise GalleryError(
                f"{self._store.client.address} has photos of {len(missing)} items that it does not list",
                remedy="Search again; if this stays, a change was not finished: repeat it",
            )
        facts = [Item.read(known[name]) for name in names]
        means = np.array([item.mean for item in facts]).reshape(len(facts), self._store.dim)
        return ItemFacts(means, np.array([item.group for item in facts], dtype=np.int64))

    def _known(self, item_ids: Sequence[str]) -> dict[str, Any]:
        """Return the rows of items, for those that exist, and keep them."""
        missing = [item for item in dict.fromkeys(item_ids) if item not in self._rows]
        found = self._store.item_rows(missing, self._level)
        if len(self._rows) + len(found) > MEANS:
            found |= {item: self._rows[item] for item in {*item_ids} & self._rows.keys()}
            self._rows.clear()
        self._rows.update(found)
        return {item: self._rows[item] for item in item_ids if item in self._rows}

    def around(self, vectors: NDArray[np.float32], k: int, *, only: Any = None) -> Around:
        """Return what a search by item distance compares, found in two rounds of requests.

        The nearest photos come first. Where they show too few items, or an approximate index may have missed some, the
        items with the nearest means are rivals too, unless the list of photos proves them farther. `only` is a
        condition in Milvus's own language.
        """
        limit, store = min(MOST, max(LISTED, 5 * k + 10)), self._store
        kind, level = self._kinds[store.photos], self._level
        passing = () if only is None else (POOL.submit(store.nearest, store.photos, vectors, limit, kind, level, only),)
        near = store.nearest(store.photos, vectors, limit, kind, level)
        found = [near, *(each.result() for each in passing)]
        listed = [self._listed(vectors, hits, k) for hits in found]
        seen = [{hit["entity"]["item_id"] for hit in hits} for hits in found[0]]
        enough = min(CANDIDATES, self._item_count)
        rows = [row for row, items in enumerate(seen) if items and (kind != FLAT or len(items) < enough)]
        others = POOL.submit(self._others, vectors[rows]) if rows else None
        numbers = np.unique(np.concatenate([self.items_at(positions).ravel() for positions, _ in listed]))
        self._known([self.item_names[number] for number in numbers.tolist() if number != NONE])
        items, distances = np.full((len(vectors), UNSEEN), NONE), np.full((len(vectors), UNSEEN), np.inf)
        for row, hits in zip(rows, others.result() if others is not None else [], strict=True):
            known = [hit for hit in hits if hit["entity"]["item_id"] not in seen[row]]
            last = float(_distances(found[0][row][-1:], vectors[row])[0])
            averages = np.array([hit["distance"] * hit["entity"]["cosine"] for hit in known])
            if len(seen[row]) < enough or may_be_nearer(last, averages).any():
                items[row, : len(known)] = [self._number_of(hit["entity"]["item_id"]) for hit in known]
                distances[row, : len(known)] = unseen_nearest(last, averages)
        return Around(listed[0], listed[-1], (items, distances) if rows else (items[:, :0], distances[:, :0]))

    def _others(self, vectors: NDArray[np.float32]) -> list[list[Any]]:
        """Return the items with the nearest means to vectors (n, d), and keep them."""
        store = self._store
        most = min(UNSEEN, self._item_count)
        found = store.nearest(store.items, vectors, most, self._kinds[store.items], self._level)
        self._rows.update({hit["entity"]["item_id"]: hit["entity"] for hits in found for hit in hits})
        return found

    def _listed(self, vectors: NDArray[np.float32], found: list[list[Any]], k: int) -> tuple[Rows, Floats]:
        """Return the nearest photo (n, k) of each item among hits, and its distance."""
        best = [
            _by_item(hits, _distances(hits, vector), k, math.inf) for vector, hits in zip(vectors, found, strict=True)
        ]
        return self._table(best, k)

    def _table(self, answers: list[list[Hit]], k: int) -> tuple[Rows, Floats]:
        nearest, distances = np.full((len(answers), k), NONE), np.full((len(answers), k), np.inf)
        for row, best in enumerate(answers):
            self._remember(fields for fields, _ in best)
            nearest[row, : len(best)] = [self._positions[fields["photo_id"]] for fields, _ in best]
            distances[row, : len(best)] = [apart for _, apart in best]
        return nearest, distances

    def nearest(self, vectors: NDArray[np.float32], k: int, *, only: Any = None) -> tuple[Rows, Floats]:
        """Return the nearest photo of each of the k nearest items, as `Photos.nearest`.

        Milvus proposes candidates until no other photo can be nearer, or until it returns no more of them. `only` is a
        condition in Milvus's own language.
        """
        answers: list[list[Hit]] = [[] for _ in vectors]
        waiting, fetch = list(range(len(vectors))), FIRST_FETCH + 4 * k
        most = k if only else min(k, self._item_count)
        while waiting:
            fetch, again = min(fetch, MOST), []
            name = self._store.photos
            found = self._store.nearest(name, vectors[waiting], fetch, self._kinds[name], self._level, only or "")
            for query, hits in zip(waiting, found, strict=True):
                distances = _distances(hits, vectors[query])
                limit = _limit(hits, len(vectors[query])) if len(hits) == fetch else np.inf
                best = answers[query] = _by_item(hits, distances, k, limit)
                if not (len(best) == most or limit == np.inf or fetch == MOST):
                    again.append(query)
            waiting, fetch = again, 4 * fetch
        return self._table(answers, k)


def _distances(hits: Sequence[Any], vector: NDArray[np.float32]) -> Floats:
    """Return the distances of hits."""
    if not hits:
        return np.zeros(0)
    return plain_distance(vector[None], np.array([hit["entity"]["vector"] for hit in hits], dtype=np.float32))


def _limit(hits: Sequence[Any], dim: int) -> float:
    """Return a lower bound for the distance of any photo that is not among the hits of an exact search."""
    cosine = float(hits[-1]["distance"]) + 2 * (SLACK + dim * 2.0**-24)
    return math.sqrt(max(0.0, 2 - 2 * cosine))


def _by_item(hits: Sequence[Any], distances: Floats, k: int, limit: float) -> list[Hit]:
    """Return the nearest photo of each of the k nearest items whose distance is below the limit."""
    best: dict[str, Hit] = {}
    for i in sorted(range(len(hits)), key=lambda i: (distances[i], hits[i]["entity"]["photo_id"])):
        entity = hits[i]["entity"]
        if distances[i] >= limit or len(best) == k:
            break
        best.setdefault(entity["item_id"], (entity, float(distances[i])))
    return list(best.values())
