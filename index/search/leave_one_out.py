"""Draws: searches of a gallery for items that are not in it, to measure how close unknown items come.

An *own* draw searches with a gallery photo and leaves out all photos of its item and of the other items of its group.
It also leaves out duplicates: other items with a copy of the query. A *probe* draw searches with a photo from elsewhere
and leaves out its item if the gallery has it. Draws are made by the search that answers queries
(`index.search.item_search`). `make_draws` makes all draws of a gallery version anew.
Shapes: n draws, m probes, d = embedding size.
"""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from index.errors import GalleryCorrupt, InvalidParameter
from index.files import load_arrays, write_file
from index.search.details import Verifier, check_query_features
from index.search.distance import Floats, Rows, accepts
from index.search.item_distance import RIVALS, ItemDistance, mean_photo
from index.search.item_search import CLOSE, NOBODY, ItemSearch, Queries
from index.snapshot import GROUP, group_key, group_of

if TYPE_CHECKING:
    from index.gallery import Gallery
    from index.location import AnyGallery, AnyPhotos
    from index.snapshot import Snapshot

OWN = "own"  # the source of draws with gallery photos
PHOTOS = "{} photos"  # sources of draws with the mean of several photos of an item
WINDOWS = "windows"  # the source of draws with the nearest of several windows of a photo
MOST_SEVERAL = 1000  # draws with several photos, and so many photos of an item
SEVERAL = (2, 3, 4)
MOST_OTHERS = 64  # photos of an item to take several of
SOURCE = "source"  # metadata key of where a photo comes from
FOLDS_FILE = "folds.npz"  # in the folder of a gallery
DRAWS = "draws"  # the name under which a gallery keeps draws
RIVALRY = ("/rivals", "/without")  # endings of keys in the npz that draws of version 0.2.0 lack
ABOUT, MARK = "about", "/"  # in the npz: the key of what all draws share, and the separator of source and field
MOST_DRAWS = 3000  # draws of each source that a gallery keeps
MOST_VERIFIED = 500  # the same where details are compared: 100 pairs per draw take about a minute on one core
SMALLEST = 8  # photos per draw that are sorted for the sample
TWIN_FOUND, TWIN_BEFORE = 0.75, 0.3  # shares of the draws of two items (`suspected_twins`)
LAST = np.iinfo(np.int64).max  # greater than every seq
TRIES = 5  # to read the fitted items and the photos of one version

Texts = NDArray[np.str_]
T = TypeVar("T")
IsCopy = Callable[[str, str], bool]  # takes two photo ids
IsFitted = Callable[[str, str | None], bool]  # takes an item id and the hash of a photo's file


@dataclass(frozen=True)
class Draws:
    """A sample of searches for items that are not in the gallery, and of searches for the same items as they are."""

    ids: Texts  # (n,) photo ids of the queries
    items: Texts  # (n,) item ids of the queries
    seqs: Rows  # (n,) seqs of the query photos in the gallery, NOBODY for a probe
    distances: Floats  # (n,) item distance of the first item without the own one, inf if there is none
    nearest: Rows  # (n,) seq of the nearest photo of that item, NOBODY if there is none
    nearest_items: Texts  # (n,) its item id, "" if there is none
    plain: Floats  # (n,) plain distance to the nearest photo of another item
    own: Floats  # (n,) item distance of the own item without the query's photo, inf if it has no other photo
    own_nearest: Rows  # (n,) seq of its nearest photo, NOBODY if there is none
    own_plain: Floats  # (n,) plain distance to that photo
    wrong: Floats  # (n,) item distance of another item that comes first although the own one is there, else inf
    duplicates: Rows  # (n,) seq of a copy of the query in another item, NOBODY if there is none
    groups: Texts = None  # type: ignore[assignment]  # (n,) key of the group of the query's item; by default, the item
    rivals: Rows = None  # type: ignore[assignment]  # (n, 5) numbers of the groups of the first item's rivals, or NOBODY
    without: Floats = None  # type: ignore[assignment]  # (n, 6) `distances` without the first item or a rival, or inf

    def __post_init__(self) -> None:
        rivals, without = np.full((len(self), RIVALS), NOBODY), np.full((len(self), 1 + RIVALS), np.inf)
        for name, value in {"groups": self.items, "rivals": rivals, "without": without}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @classmethod
    def none(cls) -> Draws:
        """Return an empty sample."""
        texts, seqs, distances = np.zeros(0, str), np.zeros(0, np.int64), np.zeros(0)
        return cls(
            ids=texts,
            items=texts,
            seqs=seqs,
            distances=distances,
            nearest=seqs,
            nearest_items=texts,
            plain=distances,
            own=distances,
            own_nearest=seqs,
            own_plain=distances,
            wrong=distances,
            duplicates=seqs,
        )

    @classmethod
    def checked(cls, values: Mapping[str, NDArray[Any]]) -> Draws:
        """Return the draws of arrays by field; raise ValueError for arrays of other kinds or of unequal lengths."""
        draws, none = cls(**values), cls.none().arrays()
        for name, value in draws.arrays().items():
            if value.dtype.kind != none[name].dtype.kind or value.shape != (len(draws), *none[name].shape[1:]):
                raise ValueError(f"{name}: {value.dtype} {value.shape}")
        return draws

    def __len__(self) -> int:
        return len(self.ids)

    def closest(self, of: Rows, count: int) -> Draws:
        """Return one draw for each of `count` photos: the closest of its windows, given the photo of each (n,).

        The search for items that are not there and the one with the own item may take different windows.
        """
        first = np.minimum(np.where(np.isinf(self.wrong), self.own, np.inf), self.wrong)
        without, having = (np.lexsort((distances, of)) for distances in (self.distances, first))
        starts = np.searchsorted(of, np.arange(count))
        picked, other = without[starts], having[starts]
        arrays = {name: values[picked] for name, values in self.arrays().items()}
        mated = {name: getattr(self, name)[other] for name in ("own", "own_nearest", "own_plain", "wrong")}
        return Draws(**arrays | mated)

    @classmethod
    def joined(cls, parts: Sequence[Draws]) -> Draws:
        """Return the draws of several samples as one."""
        arrays = [part.arrays() for part in (cls.none(), *parts)]
        return cls(**{name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]})

    def renumbered(self, old: Rows, new: Rows) -> Draws:
        """Return the draws with photos of other seqs: for each of the `old` seqs (p,), ascending, that of `new`.

        A photo that is not among the old ones becomes NOBODY.
        """
        arrays, old, new = self.arrays(), np.append(old, LAST), np.append(new, NOBODY)
        for name in ("seqs", "nearest", "own_nearest", "duplicates"):
            places = np.searchsorted(old, arrays[name])
            arrays[name] = np.where(old[places] == arrays[name], new[places], NOBODY)
        return Draws(**arrays)

    def where(self, chosen: NDArray[np.bool_]) -> Draws:
        """Return the draws selected by a mask (n,)."""
        return Draws(**{name: values[chosen] for name, values in self.arrays().items()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fields as arrays."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class Probes:
    """Photos from elsewhere, m of them, to search the gallery with."""

    vectors: NDArray[np.float32]  # (m, d) of length 1
    ids: Sequence[str]
    items: Sequence[str]
    features: Sequence[bytes] = ()  # of each probe, where details are compared
    groups: Sequence[str] = ()  # of each probe's item, "" for an item without one; () if no item has one

    @property
    def keys(self) -> list[str]:
        """What identifies the group of each probe's item, or the item if it has none (m,)."""
        return [group_key(*pair) for pair in zip(self.items, self.groups or [""] * len(self.items), strict=True)]

    def where(self, rows: Sequence[int]) -> Probes:
        """Return the probes in some rows."""

        def taken(values: Sequence[T]) -> list[T]:
            return [values[row] for row in rows] if values else []

        vectors, ids, items = self.vectors[rows], taken(self.ids), taken(self.items)
        return Probes(vectors, ids, items, taken(self.features), taken(self.groups))


@dataclass(frozen=True)
class Windows:
    """Vectors of the windows of n photos of a local gallery, w of each."""

    seqs: Rows  # (n,)
    vectors: NDArray[np.float32]  # (n, w, d) of length 1, zeros for a photo with fewer windows

    def pack(self) -> bytes:
        """Return them as content for `Gallery.keep`."""
        file = io.BytesIO()
        np.savez(file, seqs=self.seqs, vectors=self.vectors)
        return file.getvalue()

    def renumbered(self, live: Rows) -> Windows:
        """Return the windows for a copy of their gallery, in which its live photos (seqs, ascending) count from 0."""
        kept = np.isin(self.seqs, live)
        return Windows(np.searchsorted(live, self.seqs[kept]), self.vectors[kept])

    @classmethod
    def read(cls, gallery: AnyGallery) -> Windows | None:
        """Return the windows that a gallery keeps, None if there are none or they are damaged."""
        content = gallery.kept(WINDOWS)
        try:
            arrays = {} if content is None else load_arrays(content)
            return cls(arrays["seqs"], arrays["vectors"])
        except (ValueError, KeyError):
            return None


@dataclass(frozen=True)
class FoldVectors:
    """Vectors of a local gallery's photos by K fold models, in a file of its own. Fitted items are drawn with them."""

    key: str  # of the fold models
    seqs: Rows  # (n,) of the photos, ascending
    vectors: NDArray[np.float16]  # (n, K, d)

    @classmethod
    def read(cls, gallery: Gallery, key: str = "") -> FoldVectors | None:
        """Return the vectors that a gallery keeps, None if it has none by the fold models of a key, or none at all."""
        try:
            arrays = load_arrays((gallery.path / FOLDS_FILE).read_bytes())
            kept = cls(str(arrays["key"]), arrays["seqs"], arrays["vectors"])
        except (OSError, ValueError, KeyError):  # missing or damaged: `index` makes it anew
            return None
        return kept if kept.key == (key or kept.key) else None

    def write(self, gallery: Gallery) -> None:
        """Replace the vectors that a gallery keeps."""
        file = io.BytesIO()
        np.savez(file, key=np.array(self.key), seqs=self.seqs, vectors=self.vectors)
        write_file(gallery.path / FOLDS_FILE, file.getvalue())

    def renumbered(self, live: Rows) -> FoldVectors:
        """Return the vectors for a copy of their gallery, in which its live photos (seqs, ascending) count from 0."""
        kept = np.isin(self.seqs, live)
        return FoldVectors(self.key, np.searchsorted(live, self.seqs[kept]), self.vectors[kept])

    @classmethod
    def unpacked(cls, photos: Sequence[bytes | None], key: str, dim: int) -> FoldVectors:
        """Return the vectors of photos that count from 0, given as bytes, each of `dim` numbers per fold model."""
        seqs = [seq for seq, content in enumerate(photos) if content is not None]
        vectors = np.frombuffer(b"".join(content for content in photos if content is not None), dtype=np.float16)
        return cls(key, np.array(seqs, dtype=np.int64), vectors.reshape(len(seqs), -1 if seqs else 0, dim))

    def positions(self, now: Snapshot) -> tuple[Rows, Rows]:
        """Return the positions (m,) of the live photos that have vectors, and their rows (m,)."""
        rows = np.flatnonzero(np.isin(self.seqs, now.seqs[now.live]))
        return np.searchsorted(now.seqs, self.seqs[rows]), rows


@dataclass(frozen=True)
class KeptDraws:
    """The draws of a gallery version by source, for one model and item distance."""

    model: str  # identifies what else the draws depend on: model, item distance and fitted items
    sources: Mapping[str, Draws]
    fitted: frozenset[str]  # items of the gallery that the model was fitted on, or others of their group: not drawn
    version: int = -1  # of the gallery
    fingerprint: tuple[int, int] = 0, 0  # of the photos that were searched (`Snapshot.fingerprint`)
    until: int = 0  # one more than the seq of the newest photo that was searched
    is_old: bool = False  # whether version 0.2.0 made them: without rivals, bounds are not what they are now

    def changed(self, gallery: AnyGallery) -> int:
        """Return the number of photos that were added or removed since the draws were made."""
        now = gallery.snapshot()
        if now.fingerprint == self.fingerprint:
            return 0
        start = int(np.searchsorted(now.seqs, self.until))
        return max(1, int(now.live[start:].sum()) + self.photos - int(now.live[:start].sum()))

    def renumbered(self, live: Rows) -> KeptDraws:
        """Return the draws for a copy of their gallery, in which its live photos (seqs, ascending) count from 0."""
        numbers = np.arange(len(live))
        sources = {name: draws.renumbered(live, numbers) for name, draws in self.sources.items()}
        same = self.fingerprint == (len(live), int(live.sum()))
        state = int(numbers.sum()) if same else NOBODY  # photos have changed since, and so they have in the copy
        until = int(np.searchsorted(live, self.until))
        return replace(self, sources=sources, fingerprint=(self.photos, state), until=until)

    @property
    def photos(self) -> int:
        """The number of live photos that were searched."""
        return self.fingerprint[0]

    def pack(self) -> bytes:
        """Return the draws as content for `Gallery.keep`."""
        numbers = {"version": self.version, "until": self.until, "fingerprint": self.fingerprint}
        about = {"model": self.model, "fitted": sorted(self.fitted), **numbers}
        arrays: dict[str, Any] = {ABOUT: np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
        for source, draws in self.sources.items():
            named = {f"{source}{MARK}{name}": value for name, value in draws.arrays().items()}
            arrays |= {name: value for name, value in named.items() if not (self.is_old and name.endswith(RIVALRY))}
        file = io.BytesIO()
        np.savez(file, **arrays)
        return file.getvalue()

    @classmethod
    def read(cls, gallery: AnyGallery) -> KeptDraws | None:
        """Return the draws that a gallery keeps, None if there are none or they are damaged."""
        try:
            content = gallery.kept(DRAWS)
            return None if content is None else cls._unpacked(load_arrays(content), gallery)
        except (GalleryCorrupt, ValueError, KeyError, TypeError, RecursionError):
            return None

    @classmethod
    def _unpacked(cls, arrays: dict[str, NDArray[Any]], gallery: AnyGallery) -> KeptDraws:
        about = json.loads(arrays.pop(ABOUT).tobytes())
        sources: dict[str, dict[str, Any]] = {}
        for name, value in arrays.items():
            source, _, key = name.rpartition(MARK)
            sources.setdefault(source, {})[key] = value
        draws = {source: Draws.checked(values) for source, values in sources.items()}
        for source, values in sources.items():
            if "groups" not in values:  # made by version 0.2.0
                draws[source] = _with_groups(draws[source], gallery)
        photos, state = map(int, about["fingerprint"])
        fitted, is_old = frozenset(about["fitted"]), any("rivals" not in values for values in sources.values())
        until = int(about["until"])
        return cls(about["model"], draws, fitted, int(about["version"]), (photos, state), until, is_old)


def make_draws(
    gallery: AnyGallery,
    *,
    model: str,
    item_distance: ItemDistance,
    verifier: Verifier | None = None,
    probes: Mapping[str, Probes],
    is_fitted: IsFitted | None = None,
    content_key: str = "",
    is_copy: IsCopy | None = None,
    windows: Windows | None = None,
) -> KeptDraws:
    """Return the draws of the newest version of a gallery.

    Parameters
    ----------
    probes:
        Photos from elsewhere to search the gallery with, by source.
    is_fitted:
        Whether the model was fitted on a gallery item. Such items have no own draws, nor do others of their group.
    content_key:
        Metadata key of the hash of a photo's file, used to find duplicates and fitted photos.
    is_copy:
        Whether two photos show the same picture, used to find more duplicates.
    windows:
        Vectors of windows of gallery photos.

    Raises
    ------
    InvalidParameter
        If `is_fitted` is given without a `content_key`.
    """
    if is_fitted is not None and not content_key:
        raise InvalidParameter("content_key", "name a metadata key if is_fitted is given", content_key)
    names = {item for source in probes.values() for item in source.items}
    for _ in range(TRIES):  # others may change the gallery meanwhile
        version, now = gallery.version, gallery.snapshot()
        fitted = _fitted(gallery.values(content_key) if is_fitted is not None else (), is_fitted)
        mates, theirs = (set(), set()) if is_fitted is None else _mates(fitted, gallery, is_fitted)
        fitted |= mates
        numbers = gallery.item_numbers(sorted(fitted | names))
        if gallery.version == version:
            break
    excluded = [numbers[item] for item in fitted if item in numbers]
    drawer = Drawer(ItemSearch(now, item_distance, verifier), content_key, is_copy)
    sources = {OWN: drawer.own(excluded=excluded)}
    sources |= {PHOTOS.format(count): drawer.several(count, excluded=excluded) for count in SEVERAL}
    if windows is not None:
        sources[WINDOWS] = drawer.windows(windows, excluded=excluded)
    for name, source in probes.items():
        draws = drawer.probes(source, numbers=[numbers.get(item, NOBODY) for item in source.items])
        if is_fitted is not None:
            theirs |= {key for key in {*draws.groups} - {*draws.items} if is_fitted(key, None)}
        sources[name] = draws.where(~np.isin(draws.groups, list(theirs)) | np.isin(draws.items, list(fitted)))
    present = frozenset(item for item in fitted if item in numbers)
    until = int(now.seqs[-1]) + 1 if len(now.seqs) else 0
    return KeptDraws(model, sources, present, version, now.fingerprint, until)


def _fitted(listed: Iterable[tuple[str, str, str | None]], is_fitted: IsFitted | None) -> set[str]:
    """Return the items with a photo that the model was fitted on, given id, item and file hash of all photos."""
    fitted: set[str] = set()
    for _, item, content in listed:
        if item not in fitted and is_fitted is not None and is_fitted(item, content):
            fitted.add(item)
    return fitted


def _mates(items: Collection[str], gallery: AnyGallery, is_fitted: IsFitted) -> tuple[set[str], set[str]]:
    """Return the items of the groups of fitted items, which may be gone from the gallery, and the groups' keys."""
    group = groups_by_item(gallery)
    theirs = {group.get(item, "") for item in items}
    theirs |= {name for name in {*group.values()} - {""} if is_fitted(group_key("", name), None)}
    theirs -= {""}
    return {item for item, name in group.items() if name in theirs}, {group_key("", name) for name in theirs}


@dataclass(frozen=True)
class Drawer:
    """Makes draws by the search of one version."""

    search: ItemSearch
    content_key: str = ""  # metadata key of the hash of a photo's file; with "", files are not compared
    is_copy: IsCopy | None = None  # compares pictures by their pixels; with None, they are not compared
    _contents: dict[int, object] = field(default_factory=dict)  # hashes of files by position

    @property
    def photos(self) -> AnyPhotos:
        """The photos that are searched."""
        return self.search.photos

    @property
    def most(self) -> int:
        """The number of draws of each source that a gallery keeps."""
        return MOST_DRAWS if self.search.verifier is None else MOST_VERIFIED

    def own(self, *, excluded: Collection[int] = (), most: int | None = None) -> Draws:
        """Return the own draws, without those of the items with the `excluded` numbers."""
        positions = sample(self.photos, self.most if most is None else most, excluded=excluded)
        return self._of_photos(self.photos.vectors(positions), positions[:, None])

    def several(self, count: int, *, excluded: Collection[int] = (), most: int = MOST_SEVERAL) -> Draws:
        """Return own draws with the mean of `count` photos of an item, of different sources if it has any.

        Local features are not compared.
        """
        sets = self._sets(sample(self.photos, most, excluded=excluded), count)
        means = [mean_photo(self.photos.vectors(positions)) for positions in sets]
        return self._without_details._of_photos(np.array(means, dtype=np.float32), sets)

    def _sets(self, positions: Rows, count: int) -> NDArray[np.int64]:
        """Return sets (n, count) of photos of one item, each with one of the photos at some positions."""
        sets: dict[tuple[int, ...], list[int]] = {}
        found = self.photos.photos_of(self.photos.items[positions].tolist())
        for position, own in zip(positions.tolist(), found, strict=True):
            others = own[own != position]
            others = others[np.argsort(hashed(self.photos.seqs[others]), kind="stable")][:MOST_OTHERS]
            if len(others) >= count - 1:
                chosen = self._of_other_sources(position, others.tolist())[: count - 1]
                sets.setdefault(tuple(sorted((position, *chosen))), [position, *chosen])
        return np.array(list(sets.values()), dtype=np.int64).reshape(-1, count)

    def _of_other_sources(self, position: int, others: list[int]) -> list[int]:
        """Return photos with those first that are of a source that no photo before them has."""
        sources = {place: self.photos.photo(place)[2].get(SOURCE) for place in (position, *others)}
        first: list[int] = []
        rest: list[int] = []
        seen = {sources[position]}
        for place in others:
            (rest if sources[place] in seen else first).append(place)
            seen.add(sources[place])
        return first + rest

    def windows(self, windows: Windows, *, excluded: Collection[int] = ()) -> Draws:
        """Return own draws with the windows of photos: of each photo, the window that comes closest counts."""
        photos, seqs = self.photos, windows.seqs
        kept = np.isin(seqs, photos.seqs[photos.live & ~np.isin(photos.items, list(excluded))])
        positions, vectors = np.searchsorted(photos.seqs, seqs[kept]), windows.vectors[kept]
        real = np.linalg.norm(vectors, axis=2) > 0
        of, _ = real.nonzero()
        return self._without_details._of_photos(vectors[real], positions[of, None]).closest(of, len(positions))

    @property
    def _without_details(self) -> Drawer:
        return replace(self, search=replace(self.search, verifier=None))

    def _of_photos(self, vectors: NDArray[np.float32], positions: Rows) -> Draws:
        """Return draws with vectors (n, d) that were made from the photos of the gallery at positions (n, k)."""
        first = positions[:, 0]
        named, numbers = self.photos.photos_at(first), self.photos.items[first]
        ids, items = (np.array([names[column] for names in named], dtype=str) for column in (0, 1))
        groups = groups_of(self.photos, numbers, items)
        return self._draws(ids, items, groups, self.photos.seqs[first], Queries(vectors, numbers, positions))

    def probes(self, probes: Probes, *, numbers: Sequence[int]) -> Draws:
        """Return the probe draws.

        Parameters
        ----------
        numbers:
            Number of each probe's item in the gallery, -1 if the item is not in the gallery.
        """
        labels = np.array(probes.items, dtype=str)
        chosen = every_item_once(labels, hashed(np.arange(len(labels))))[: self.most]
        given = () if self.search.verifier is None else check_query_features(probes.features, len(labels))
        features = [given[place] for place in chosen.tolist()] if given else ()
        nobody = np.full(len(chosen), NOBODY, np.int64)
        of = np.array(numbers, dtype=np.int32)[chosen]
        groups = groups_of(self.photos, of, np.array(probes.keys, dtype=str)[chosen])
        queries = Queries(probes.vectors[chosen], of, nobody[:, None], features)
        draws = self._draws(np.array(probes.ids, dtype=str)[chosen], labels[chosen], groups, nobody, queries)
        return draws if not probes.groups else self._without_own_groups(draws)

    def _without_own_groups(self, draws: Draws) -> Draws:
        """Return draws in which items that are not here find none of their own group: they find nothing instead."""
        here, distances = np.flatnonzero(draws.nearest != NOBODY), draws.distances.copy()
        numbers = self.photos.items[np.searchsorted(self.photos.seqs, draws.nearest[here])]
        found = groups_of(self.photos, numbers, draws.nearest_items[here])
        distances[here[found == draws.groups[here]]] = np.inf
        return replace(draws, distances=distances)

    def _draws(self, ids: Texts, items: Texts, groups: Texts, seqs: Rows, queries: Queries) -> Draws:
        found = self.search.draws(queries, self.is_duplicate)
        nearest = ["" if draw.nearest == NOBODY else self.photos.photo(draw.nearest)[1] for draw in found]
        rivals, without = np.full((len(found), RIVALS), NOBODY), np.full((len(found), 1 + RIVALS), np.inf)
        for row, draw in enumerate(found):
            rivals[row, : len(draw.rivals)], without[row, : len(draw.without)] = draw.rivals, draw.without

        def distances(name: str) -> Floats:
            return np.array([getattr(draw, name) for draw in found], dtype=np.float64)

        def seqs_of(name: str) -> Rows:
            positions = np.array([getattr(draw, name) for draw in found], dtype=np.int64)
            return np.where(positions == NOBODY, NOBODY, self.photos.seqs[positions])

        return Draws(
            ids=ids,
            items=items,
            seqs=seqs,
            distances=distances("distance"),
            nearest=seqs_of("nearest"),
            nearest_items=np.array(nearest, dtype=str),
            plain=distances("plain"),
            own=distances("own"),
            own_nearest=seqs_of("own_nearest"),
            own_plain=distances("own_plain"),
            wrong=distances("wrong"),
            duplicates=seqs_of("duplicate"),
            groups=groups,
            rivals=rivals,
            without=without,
        )

    def is_duplicate(self, query: int, position: int) -> bool:
        """Return whether the photo at a position is a copy of the query at another, which is NOBODY for a probe."""
        if query == NOBODY:
            return False
        content = self._content(query)
        if content is not None and content == self._content(position):
            return True
        return self.is_copy is not None and self.is_copy(self.photos.photo(query)[0], self.photos.photo(position)[0])

    def _content(self, position: int) -> object:
        """Return the hash of the file of the photo at a position, None if it is unknown."""
        if not self.content_key:
            return None
        if position not in self._contents:
            self._contents[position] = self.photos.photo(position)[2].get(self.content_key)
        return self._contents[position]


def groups_by_item(gallery: AnyGallery) -> dict[str, str]:
    """Return the group of each item of a gallery, that of its first photo; "" for one without a group."""
    return {item: group_of(item, {GROUP: value}) for _, item, value in reversed(gallery.values(GROUP))}


def groups_of(photos: AnyPhotos, numbers: NDArray[np.int32], others: Texts) -> Texts:
    """Return what identifies the group of each of some items (n,), by number, or the item if it has none.

    That of items that are not there is in `others` (n,).
    """
    wanted = np.unique(numbers[numbers != NOBODY]).tolist()
    first = {number: own[0] for number, own in zip(wanted, photos.photos_of(wanted), strict=True) if len(own)}
    named = photos.photos_at(np.array(list(first.values()), dtype=np.int64))
    known = {
        number: group_key(item, group_of(item, about)) for number, (_, item, about) in zip(first, named, strict=True)
    }
    each = zip(numbers.tolist(), others.tolist(), strict=True)
    return np.array([known.get(number, other) for number, other in each], dtype=str)


def _with_groups(draws: Draws, gallery: AnyGallery) -> Draws:
    """Return draws with the groups that their items have in a gallery now."""
    numbers = gallery.item_numbers(sorted(set(draws.items)))
    of = np.array([numbers.get(item, NOBODY) for item in draws.items], dtype=np.int32)
    return replace(draws, groups=groups_of(gallery.snapshot(), of, draws.items))


def suspected_twins(own: Draws) -> list[tuple[str, str]]:
    """Return pairs of items that look like one item under two ids, in alphabetical order.

    Each is the item that the draws of the other find most often. Of the draws of both, three quarters find the other
    one, and three of ten find it even before their own item. Items with one photo need photos that are nearly copies.
    """
    before = np.where(np.isfinite(own.own), np.isfinite(own.wrong), accepts(own.plain, CLOSE))
    counts, found = Counter(own.items.tolist()), defaultdict[str, dict[str, list[bool]]](dict)
    for item, other, is_before in zip(own.items.tolist(), own.nearest_items.tolist(), before.tolist(), strict=True):
        found[item].setdefault(other, []).append(is_before)
    nearest = {item: max(sorted(others), key=lambda other: len(others[other])) for item, others in found.items()}
    pairs = []
    for item, other in sorted(nearest.items()):
        if item < other and nearest.get(other) == item:
            draws, count = found[item][other] + found[other][item], counts[item] + counts[other]
            if len(draws) >= TWIN_FOUND * count and sum(draws) >= TWIN_BEFORE * count:
                pairs.append((item, other))
    return pairs


def sample(snapshot: AnyPhotos, most: int, *, excluded: Collection[int] = ()) -> Rows:
    """Return the positions of up to `most` live photos, with every item once before any item twice.

    The sample depends only on the seqs of the photos, not on the order of changes. It holds none of the items with the
    `excluded` numbers.
    """
    positions = np.flatnonzero(snapshot.live)
    if excluded:
        positions = positions[~np.isin(snapshot.items[positions], list(excluded))]
    keys = hashed(snapshot.seqs[positions])
    if len(keys) > SMALLEST * most:  # sort only the smallest keys if they belong to enough items
        smallest = np.argpartition(keys, SMALLEST * most)[: SMALLEST * most]
        if len(np.unique(snapshot.items[positions[smallest]])) >= most:
            positions, keys = positions[smallest], keys[smallest]
    return np.asarray(positions[every_item_once(snapshot.items[positions], keys)[:most]])


def evenly_spaced(snapshot: AnyPhotos, count: int) -> Rows:
    """Return the positions of up to `count` live photos, evenly spaced in insertion order."""
    positions = np.flatnonzero(snapshot.live)
    count = min(count, len(positions))
    return np.asarray(positions[(2 * np.arange(count) + 1) * len(positions) // max(1, 2 * count)])


def every_item_once(items: NDArray[np.generic], keys: NDArray[np.generic]) -> Rows:
    """Return an order of n photos, by `keys` (n,), with every item once before any item twice."""
    order = np.lexsort((keys, items))
    ordered = items[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]] if len(items) else np.zeros(0, bool)
    starts = np.maximum.accumulate(np.where(first, np.arange(len(items)), 0))
    turn = np.arange(len(items)) - starts  # number of photos of the same item before this one
    return np.asarray(order[np.lexsort((keys[order], turn))])


def hashed(numbers: Rows) -> NDArray[np.uint64]:
    """Return a pseudo-random hash of each integer (SplitMix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
