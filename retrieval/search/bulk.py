"""Search with each of many photos: batches are decoded, embedded and searched in threads; answers stay in order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from index.groups import GROUP, group_of, groups_by_item
from index.location import AnyGallery
from index.photos import CONTENT
from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.ids import as_spelled, describe_missing
from retrieval.catalogue.photos import LABELS, QUERIES, UNLABELLED, Labels, Photo
from retrieval.catalogue.read import is_table, photos_of, read_catalogue
from retrieval.catalogue.reading import ReadBatch, in_order, read_ahead
from retrieval.catalogue.remote import is_url, remote, shown
from retrieval.errors import DataError, ImageRefused, InvalidParameter, listed
from retrieval.images import Source, crop, open_image
from retrieval.images.formats import SUFFIXES
from retrieval.process import cores
from retrieval.retriever import Retriever
from retrieval.text import as_utf8

from .looks import Options
from .result import SearchResult
from .true_rates import Known, TrueRates

STDIN = "-"
STDIN_FILE = Path("standard input")  # its paths are relative to the current folder
BATCH = 16  # photos that are embedded together
LEFT_OUT = ("bundle_id", "timings_ms", "request_id")  # of an answer: the same for all

Line = dict[str, Any]


def is_bulk(place: Path | str) -> bool:
    """Return whether a place is an address, standard input, a folder or a table, rather than a local photo."""
    return is_url(place) or str(place) == STDIN or Path(place).is_dir() or is_table(place)


def read_queries(places: Sequence[Path | str], *, truth: str | None, lines: Iterable[str]) -> list[Photo]:
    """Return the photos of places: folders, tables, photos, addresses, or "-" for the lines of the standard input.

    A line is a path, or a JSON object as in a JSON-lines catalogue. With `truth`, tables need this column, and the
    sub-folders of a folder name the items; without it, items are ignored.

    The photo_id comes from the table, or is the path relative to the folder, or the path as given; bytes of a file name
    that are not UTF-8 are escaped. Raise DataError if two photos have the same id.
    """
    labels = UNLABELLED if truth is None else replace(QUERIES, columns=(truth,))
    photos: list[Photo] = []
    for place in places:
        photos += _from_lines(lines, labels) if str(place) == STDIN else _photos(place, labels)
    photos = [replace(photo, photo_id=as_utf8(photo.photo_id), item_id=as_utf8(photo.item_id)) for photo in photos]
    twice, count = Counter(photo.photo_id for photo in photos).most_common(1)[0] if photos else ("", 0)
    if count > 1:
        raise DataError(f"two photos have the id {twice}", remedy="Search in two runs, or name the photos in a table")
    return photos


def require_known_items(gallery: AnyGallery, places: Sequence[Path | str], photos: Sequence[Photo]) -> None:
    """Raise DataError if photos name items, by folders, files or a table, and none of these is in the gallery."""
    known = {item for _, item, _ in gallery.values(GROUP)}
    counts = Counter(photo.item_id for photo in as_spelled(photos, known) if photo.item_id)
    if counts and not counts.keys() & known:
        raise DataError(
            f"the gallery has none of the items that {places[0]} names: {listed(describe_missing(counts, known))}",
            remedy="Name each folder after the item that its photos show, or list the photos in a table with `path` "
            "and `item_id`, empty for an unknown item",
        )


def _photos(place: Path | str, labels: Labels) -> list[Photo]:
    of_one_photo = str(place).startswith("https:") or Path(shown(str(place))).suffix.lower() in SUFFIXES
    if is_bulk(place) and not (is_url(place) and of_one_photo):
        photos = read_catalogue(place, labels=labels)
        if not is_table(place) and labels.columns[0] not in LABELS and any(photo.span is None for photo in photos):
            rule = f"be {LABELS[0]} for a folder of photos, whose sub-folders are the items"
            raise InvalidParameter("truth", rule, labels.columns[0])
        return photos
    if not labels.may_be_missing:
        raise DataError(f"the item that {place} shows is unknown", remedy="Name it in a table, or leave out --truth")
    photo = Photo(str(place), Path(place), "")
    return [remote(photo, str(place)) if is_url(place) else photo]


def _from_lines(lines: Iterable[str], labels: Labels) -> list[Photo]:
    """Return the photos of lines, each a path, an address, or a JSON object."""
    rows = [_row(line.rstrip("\r\n"), number) for number, line in enumerate(lines, 1) if line.strip()]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not rows:
        raise DataError("the standard input names no photos", remedy="Write one path or JSON object per line")
    return photos_of(STDIN_FILE, columns, rows, labels, first_line=1)


def _row(text: str, number: int) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"path": text}
    try:
        return dict(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DataError(f"line {number} of the standard input is not a JSON object: {error}") from error


@dataclass
class Outcome:
    """Counts of answers, and the answers to photos whose items are known."""

    decisions: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str]] = field(default_factory=list)  # photo_id, reason
    known: list[Known] = field(default_factory=list)
    copies: int = 0  # photos of known items that are in the gallery, where they find themselves; not in `known`
    variants: int = 0  # photos of items that the gallery lacks, of a group that it has; not in `known`
    missing: Counter[str] = field(default_factory=Counter)  # photos of other ids that it lacks, by id; not in `known`

    @property
    def rates(self) -> TrueRates | None:
        """Return the error rates, None if the items of the photos are not known."""
        return TrueRates.of(self.known) if self.known else None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain JSON values."""
        rates, refused = self.rates, [{"photo_id": photo_id, "reason": reason} for photo_id, reason in self.refused]
        told = {"answered": self.decisions.total(), **self.decisions, "refused": refused}
        told |= {"copies": self.copies, "variants": self.variants, "missing": self.missing}
        return {**told, "rates": None if rates is None else rates.to_dict()}


def answer_photos(
    retriever: Retriever, photos: Sequence[Photo], options: Options, outcome: Outcome, *, truth: bool
) -> Iterator[Line]:
    """Yield the answers to photos as JSON objects, in order, and count them; with `truth` their items are known.

    Only a photo without an item id shows an unknown item. Photos of ids that the gallery lacks are counted apart.
    """
    gallery = retriever.gallery
    groups = groups_by_item(gallery.values(GROUP)) if truth else {}
    photos = as_spelled(photos, groups)
    known_groups = frozenset(groups.values()) - {""}
    hashes = frozenset(digest for *_, digest in gallery.values(CONTENT) if digest) if truth else ()

    def answer(batch: ReadBatch) -> list[tuple[Photo, SearchResult | ImageRefused, bool]]:
        read = list(batch.contents())
        sources = [_source(photo, data) for photo, data in zip(batch.photos, read, strict=True)]
        usable = [source for source in sources if not isinstance(source, ImageRefused)]
        results = iter(
            retriever.search_batch(
                usable, top_k=options.top_k, where=options.where, explain=options.explain, review=options.review
            )
        )
        found = [source if isinstance(source, ImageRefused) else next(results) for source in sources]
        copies = [
            truth and isinstance(data, bytes) and content_hash(data, photo.bbox) in hashes
            for photo, data in zip(batch.photos, read, strict=True)
        ]
        return list(zip(batch.photos, found, copies, strict=True))

    for answers in in_order(answer, read_ahead(photos, size=BATCH), threads=cores()):
        for photo, result, copy in answers:
            if isinstance(result, ImageRefused):
                outcome.refused.append((photo.photo_id, as_utf8(str(result))))
                yield {"photo_id": photo.photo_id, "error": outcome.refused[-1][1]}
                continue
            outcome.decisions[result.decision] += 1
            is_there = photo.item_id in groups
            told = {"truth": photo.item_id, "in_gallery": is_there, "copy": copy} if truth else {}
            group = groups.get(photo.item_id, group_of(photo.item_id, {GROUP: photo.group}))
            variant = not (copy or is_there) and group in known_groups
            is_missing = truth and photo.item_id != "" and not (is_there or variant)
            outcome.missing.update([photo.item_id] * is_missing)
            if truth and not (copy or variant or is_missing):
                outcome.known.append(Known(photo.photo_id, photo.item_id, is_there, result, group))
            outcome.copies += copy and not is_missing
            outcome.variants += variant
            item_id = result.matches[0].item_id if result.matches else None
            yield {"photo_id": photo.photo_id, "item_id": item_id, **_values(result), **told}


def _source(photo: Photo, data: bytes | ImageRefused) -> Source | ImageRefused:
    """Return the encoded photo, or its part in the bounding box."""
    if photo.bbox is None or isinstance(data, ImageRefused):
        return data
    try:
        return crop(open_image(data), photo.bbox)
    except ImageRefused as refusal:
        return refusal


def _values(result: SearchResult) -> Line:
    values = {name: value for name, value in result.to_dict().items() if name not in LEFT_OUT}
    if values["explanation"] is None:
        del values["explanation"]
    return values
