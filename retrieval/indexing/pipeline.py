"""Indexing pipeline: decode, embed and write the photos of a catalogue into a gallery.

Each worker decodes, resizes and embeds one batch on its own core (on a CPU, larger batches bring almost no speedup).
The calling thread meanwhile writes finished batches, one transaction per batch. If the gallery has an operating point,
each transaction measures it and contains at least MEASURED photos. Photos that cannot be used are reported and do not
stop the run. To continue an interrupted run, run it again: photos whose content is already in the gallery are skipped.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from index.ann.recall import Probe
from index.contents import POINT
from index.filters import is_column, kind_of
from index.location import is_address, open_or_create
from index.metadata import encode_metadata
from index.protocol import GalleryProtocol
from index.rebuild import Rebuilt
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embedder
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.bundle.served_point import stored_point
from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter
from retrieval.retriever import require_match
from retrieval.threshold.drawn_distances import GalleryRates
from retrieval.threshold.gallery_anchor import GalleryAnchor
from retrieval.threshold.several_photos import measure_again

from .ray import ray_batches
from .worker import CONTENT, Batch, catalogue_metadata, embed_batch, stored_metadata, write_batch

LOCAL, RAY = ENGINES = ("local", "ray")
MEASURED = 256  # photos per transaction if each one measures the threshold
COLUMNS = 16  # maximum number of columns declared automatically


@dataclass
class IndexReport:
    """The outcome of indexing."""

    added: int = 0
    replaced: int = 0  # photos among the added ones whose file had changed
    skipped: int = 0  # photos already in the gallery
    seconds: float = 0.0
    rebuilt: Rebuilt | None = None  # the new index, if it was rebuilt
    refused: list[tuple[str, str]] = field(default_factory=list)  # photo_id, reason
    point: OperatingPoint | None = None  # the gallery's operating point, None if the bundle's serves
    unanchored: str = ""  # why the gallery has no operating point
    rates: GalleryRates | None = None  # of the point in the gallery's newest version, None if there is no point

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        point = self.point
        return {
            **{name: getattr(self, name) for name in ("added", "replaced", "skipped", "seconds", "unanchored")},
            "rebuilt": None if self.rebuilt is None else asdict(self.rebuilt),
            "refused": [{"photo_id": photo_id, "reason": reason} for photo_id, reason in self.refused],
            "point": None if point is None else point.to_dict(),
            "in_gallery": None if point is None or self.rates is None else self.rates.to_dict(point),
        }


def index_catalogue(
    bundle: Bundle,
    photos: Sequence[Photo],
    gallery_place: str | Path,
    *,
    threads: int | None = None,
    batch_size: int = 16,
    progress: bool = True,
    kind: str | None = None,
    max_memory: int | None = None,
    engine: str = LOCAL,
    tighten: bool = False,
) -> IndexReport:
    """Add photos to the gallery at a path or address and return a report. The gallery is created if missing.

    Metadata columns for filters are declared automatically (`columns_of`). The index is rebuilt if that is due, or if
    `kind` or `max_memory` is given (`Gallery.rebuild`). The `engine` is "local", which embeds on this machine's cores,
    or "ray", which embeds on a Ray cluster. A new gallery is removed again if every photo was refused.

    A gallery without an operating point for this bundle gets one (`GalleryAnchor`); otherwise each transaction
    measures the existing one, and with `tighten` also tightens it if the new photos require it.

    Raises BundleMismatch if another model made the gallery, and GalleryLocked if another process is writing.
    """
    if engine not in ENGINES:
        raise InvalidParameter("engine", f"be one of {', '.join(ENGINES)}", engine)
    if batch_size < 1:
        raise InvalidParameter("batch_size", "be at least 1", batch_size)
    embedder = bundle.embedder(threads=1) if engine == LOCAL else None  # may fail, so do it before creating a gallery
    is_new = not is_address(gallery_place) and not Path(gallery_place).exists()
    report, started = IndexReport(), time.perf_counter()
    with (
        open_or_create(gallery_place, dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery,
        tqdm(total=len(photos), desc="indexing", unit="photo", disable=not progress) as bar,
    ):
        require_match(bundle, gallery)
        known = gallery.values(CONTENT)
        usable = _declared(gallery, photos, report)
        bar.update(len(report.refused))
        if embedder is None:
            batches = ray_batches(bundle, usable, known, batch_size=batch_size)
        else:
            batches = _overlapped(embedder, usable, known, batch_size, threads or os.cpu_count() or 1)
        anchor = GalleryAnchor(bundle, tighten=tighten)
        for batch in _grouped(batches, MEASURED if anchor.follow(gallery) else 1):
            report.added += write_batch(gallery, batch)
            report.replaced += sum(photo.photo_id in known for photo in batch.photos)
            report.skipped += batch.skipped
            report.refused += [(photo_id, error.message) for photo_id, error in batch.refused]
            bar.update(len(batch.photos) + batch.skipped + len(batch.refused))
        report.seconds = time.perf_counter() - started
        report.rebuilt = gallery.rebuild_if_due(kind=kind, max_memory=max_memory, probe=probe_of(bundle))
        if not bundle.operating_point.of_pairs:
            _anchor(anchor, gallery, report)
        is_empty = not len(gallery)
    if is_new and is_empty and report.refused:
        shutil.rmtree(gallery_place)
    return report


def _declared(gallery: GalleryProtocol, photos: Sequence[Photo], report: IndexReport) -> list[Photo]:
    """Declare columns for filters; return the photos whose metadata can be stored, and report the others."""
    declared = gallery.columns()
    gallery.declare({name: column_kind for name, column_kind in columns_of(photos).items() if name not in declared})
    refused = _refused_metadata(photos, gallery.columns())
    report.refused += refused.items()
    return [photo for photo in photos if photo.photo_id not in refused]


def _anchor(anchor: GalleryAnchor, gallery: GalleryProtocol, report: IndexReport) -> None:
    """Update the draws of a gallery, and set its operating point if it has none."""
    report.unanchored = gallery.undrawable()
    if report.unanchored:
        return
    point, draws = stored_point(gallery.kept(POINT), anchor.bundle), anchor.draws(gallery)
    if point is None:
        anchored = anchor.anchored(gallery, draws)
        point, report.unanchored = anchored.point, anchored.why_not
        if point is not None:
            anchor.write(gallery, anchored, action="calibrate")
    elif GalleryRates.read(gallery, point, anchor.bundle.draws_id) is None:
        gallery.keep(draws.pack(), "measure the threshold")
    measure_again(anchor, gallery)
    report.point = point
    report.rates = None if point is None else GalleryRates.read(gallery, point, anchor.bundle.draws_id)


def probe_of(bundle: Bundle) -> Probe:
    """Return the threshold, distance and queries that measure the recall of an approximate index."""
    queries = None if bundle.calibration is None else bundle.calibration.vectors
    threshold = bundle.threshold if bundle.operating_point.decides else math.inf  # every distance counts
    return Probe(threshold, bundle.base_form, queries)


def columns_of(photos: Sequence[Photo]) -> dict[str, str]:
    """Return the kinds of up to COLUMNS metadata columns that filters can use: those of a single kind."""
    kinds: dict[str, set[str | None]] = {}
    for photo in photos:
        for name, value in catalogue_metadata(photo).items():
            kinds.setdefault(name, set()).add(kind_of(value))
    single = {name: next(iter(seen)) for name, seen in kinds.items() if len(seen) == 1 and is_column(name)}
    return {name: kind for name, kind in list(single.items())[:COLUMNS] if kind is not None}


def _refused_metadata(photos: Sequence[Photo], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the reason per photo_id, for photos whose metadata the gallery or a declared column refuses."""
    reasons = {}
    for photo in photos:
        try:
            encode_metadata(stored_metadata(photo, "0" * 64))
        except InvalidParameter as error:
            reasons[photo.photo_id] = error.message
        for name, value in catalogue_metadata(photo).items():
            if name in columns and kind_of(value) != columns[name]:
                reasons[photo.photo_id] = f"{name} is {value!r}, and the gallery's column {name} is a {columns[name]}"
    return reasons


def _grouped(batches: Iterable[Batch], count: int) -> Iterator[Batch]:
    """Yield batches of at least `count` photos, or without vectors; the last one may be smaller."""
    group = Batch()
    for batch in batches:
        group = group + batch
        if len(group.photos) >= count or group.vectors is None:
            yield group
            group = Batch()
    yield group


def _overlapped(
    embedder: Embedder, photos: Sequence[Photo], known: Mapping[str, str], batch_size: int, threads: int
) -> Iterator[Batch]:
    """Yield finished batches in order. A kill loses at most the `threads` + 2 batches in flight."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: list[Future[Batch]] = []
        for start in range(0, len(photos), batch_size):
            waiting.append(pool.submit(embed_batch, embedder, photos[start : start + batch_size], known))
            if len(waiting) > threads + 1:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()
