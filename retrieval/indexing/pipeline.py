"""Indexing pipeline: synchronize a gallery with the photos of a catalogue.

Each worker decodes, resizes and embeds one batch on its own core (on a CPU, larger batches bring almost no speedup).
The calling thread meanwhile writes finished batches, one transaction per WRITE_S. The threshold is measured at the end.
Photos that cannot be used are reported and do not stop the run. To continue an interrupted run, run it again: only what
differs from the catalogue is done (`plan`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from index.database import POINT
from index.gallery import Rebuilt
from index.location import AnyGallery, exists, is_address, open_gallery, open_or_create
from index.search.filters import TEXT
from retrieval.bundle.bundle import Bundle, require_match
from retrieval.bundle.embedder import Embedder
from retrieval.catalogue.read import Photo
from retrieval.catalogue.reading import in_order, read_ahead
from retrieval.errors import InvalidParameter
from retrieval.galleries.kept import Kept
from retrieval.galleries.measured import measure_gallery
from retrieval.galleries.names import read_names
from retrieval.galleries.points import point_before
from retrieval.measuring.point import Point
from retrieval.measuring.rates import VersionRates

from .columns import columns_of, conversions, convert_columns, for_filters, refused_metadata
from .draw_vectors import keep_fold_vectors, keep_looks, keep_names, keep_windows, likely_draws
from .plan import SyncPlan, SyncSettings, Update, apply_updates, check_prune, remove_gone, sync_plan
from .ray import ray_batches
from .worker import Batch, embed_batch, write_batch

LOCAL, RAY = ENGINES = ("local", "ray")
WRITE_S = 1.0  # seconds from one transaction to the next


@dataclass
class IndexReport:
    """The outcome of indexing."""

    added: int = 0
    replaced: int = 0  # photos among the added ones whose file had changed
    updated: int = 0  # photos that got another item or other metadata, without being embedded
    removed: int = 0  # photos that the catalogue does not have, with `prune`
    gone: list[str] = field(default_factory=list)  # photos that the catalogue does not have and that were kept
    skipped: int = 0  # photos already in the gallery
    seconds: float = 0.0
    rebuilt: Rebuilt | None = None  # the new index, if it was rebuilt
    refused: list[tuple[str, str]] = field(default_factory=list)  # photo_id, reason
    damaged: list[str] = field(default_factory=list)  # added photos whose JPEG has lost or noisy blocks
    before: Point | None = None  # the point that served before the run, None in a new gallery
    point: Point | None = None  # the gallery's operating point, None if the bundle's serves
    sets_threshold: bool = False  # whether this run set its threshold or status
    unanchored: str = ""  # why the gallery has no operating point
    rates: VersionRates | None = None  # of the point in the gallery's newest version, None if there is no point

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, the photos that were refused or are gone, and the threshold, as plain JSON values."""
        counts = {
            name: getattr(self, name) for name in ("added", "replaced", "updated", "removed", "skipped", "seconds")
        }
        refused = [{"photo_id": photo_id, "reason": reason} for photo_id, reason in self.refused]
        point = None if self.point is None else self.point.to_dict()
        told = {"unanchored": self.unanchored, "damaged": self.damaged}
        return {**counts, "gone": self.gone, "refused": refused, "point": point, **told}


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
    sync: SyncSettings | None = None,
) -> IndexReport:
    """Synchronize the gallery at a path or address, created if missing, with photos and return a report.

    New and changed photos are embedded; a changed item or metadata is only written. Photos of the gallery that are not
    among `photos` are reported, or removed (`sync`); none is removed if the gallery has or gets none of `photos`. A
    file of the same size and time counts as unchanged. Columns for filters are declared automatically (`columns_of`).
    The index is rebuilt if that is due, or for a new `kind` or `max_memory`. The `engine` is "local" (this machine's
    cores) or "ray" (a Ray cluster). A gallery without an operating point for this bundle gets one; an existing one is
    measured and stays. A new gallery is removed again if every photo was refused. Raises BundleMismatch if another
    model made the gallery or features, GalleryLocked if another process writes, and PruneRefused, before it writes, if
    too many photos would be removed.
    """
    sync = sync or SyncSettings()
    _check(engine, batch_size, bundle, photos, sync.names)
    embedder = bundle.embedder(threads=1) if engine == LOCAL else None  # may fail, so do it before creating a gallery
    is_new = not is_address(gallery_place) and not Path(gallery_place).exists()
    report, looks, started = IndexReport(), dict[str, NDArray[np.float32]](), time.perf_counter()
    ids = {"embedding_id": bundle.embedding_id, "features_key": bundle.features_key}
    with (
        open_or_create(gallery_place, dim=bundle.dim, index=kind or "", **ids) as gallery,
        tqdm(total=len(photos), desc="indexing", unit="photo", disable=not progress) as bar,
    ):
        gallery.feature_format = bundle.feature_format
        require_match(bundle, gallery, to_add=True)
        gallery.lock()  # the gallery must not change after the plan is made
        report.before = None if is_new else point_before(gallery.kept(POINT), bundle, gallery)
        plan = _plan(gallery, photos, sync)
        usable = _update(gallery, photos, plan, report)
        bar.update(len(photos) - len(usable))
        batches = _grouped(_embedded(bundle, embedder, usable, plan.known, batch_size, threads))
        for done in _write(gallery, batches, plan, report, looks):
            bar.update(done)
        if sync.prune and (plan.kept or report.added):  # not if no other photo would remain
            report.removed = remove_gone(gallery, plan.gone)
        else:
            report.gone = plan.gone
        report.seconds = time.perf_counter() - started
        report.rebuilt = gallery.rebuild_if_due(kind=kind, max_memory=max_memory, queries=recall_queries(bundle))
        is_empty = is_new and not len(gallery)
    if is_empty and report.refused:
        shutil.rmtree(gallery_place)
        return report
    with open_gallery(gallery_place) as gallery:
        _keep_vectors(bundle, gallery, photos, sync, looks, progress=progress)
    with open_gallery(gallery_place) as gallery:  # opened again, so that others may write during the measurement
        _measure(bundle, gallery, report)
    return report


def _check(engine: str, batch_size: int, bundle: Bundle, photos: Sequence[Photo], names: str | None) -> None:
    if engine not in ENGINES:
        raise InvalidParameter("engine", f"be one of {', '.join(ENGINES)}", engine)
    if batch_size < 1:
        raise InvalidParameter("batch_size", "be at least 1", batch_size)
    if names is not None:
        bundle.text_embedder()
        if columns_of(photos).get(names) != TEXT:
            raise InvalidParameter("--names", "be a column of the catalogue that holds texts", names)


def plan_catalogue(
    bundle: Bundle, photos: Sequence[Photo], gallery_place: str | Path, *, sync: SyncSettings | None = None
) -> SyncPlan:
    """Return what `index_catalogue` would do with photos and a gallery, which need not exist."""
    sync = sync or SyncSettings()
    columns, declared = columns_of(photos), for_filters(sync.columns)
    if not exists(gallery_place):
        plan = sync_plan(photos, None)
    else:
        with open_gallery(gallery_place, read_only=True) as gallery:
            require_match(bundle, gallery)
            conversions(gallery, sync.columns)
            plan, columns = (
                sync_plan(photos, gallery, checksum=sync.checksum, prune=sync.prune),
                {**columns, **gallery.columns()},
            )
    plan.refused = refused_metadata(plan.changed, {**columns, **declared})
    return plan


def _plan(gallery: AnyGallery, photos: Sequence[Photo], sync: SyncSettings) -> SyncPlan:
    """Plan a synchronization and convert columns, unless too many photos would be removed."""
    plan = sync_plan(photos, gallery, checksum=sync.checksum, prune=sync.prune)
    check_prune(plan, sync)
    if not sync.columns:
        return plan
    convert_columns(gallery, sync.columns)
    return sync_plan(photos, gallery, checksum=sync.checksum, prune=sync.prune)


def _update(gallery: AnyGallery, photos: Sequence[Photo], plan: SyncPlan, report: IndexReport) -> list[Photo]:
    """Declare columns for filters, apply the updates of a plan, and return the photos to read.

    Photos whose ids or metadata cannot be stored are refused.
    """
    declared = {name.lower() for name in gallery.columns()}
    gallery.declare({name: kind for name, kind in columns_of(photos).items() if name.lower() not in declared})
    refused = refused_metadata(plan.changed, gallery.columns())
    report.refused += refused.items()
    report.skipped = plan.unchanged
    report.updated = apply_updates(gallery, [each for each in plan.updates if each.photo.photo_id not in refused])
    return [photo for photo in (*plan.read, *plan.new) if photo.photo_id not in refused]


def _write(
    gallery: AnyGallery,
    batches: Iterable[Batch],
    plan: SyncPlan,
    report: IndexReport,
    looks: dict[str, NDArray[np.float32]],
) -> Iterator[int]:
    """Write embedded photos, and what else changed of the others; yield the number of all photos of each batch.

    The vectors of second looks are added to `looks`.

    Updates of nothing but the file state are written together at the end, in few transactions.
    """
    touched: list[Update] = []
    for batch in batches:
        report.added += write_batch(gallery, batch, states=plan.states)
        looks |= batch.looks
        report.replaced += sum(photo.photo_id in plan.stored for photo in batch.photos)
        updates = [update for photo in batch.unchanged if (update := plan.update_of(photo)) is not None]
        changed = [update for update in updates if update.is_change]
        touched += [update for update in updates if not update.is_change]
        report.updated += apply_updates(gallery, changed)
        report.skipped += len(batch.unchanged) - len(changed)
        report.refused += [(photo_id, str(error)) for photo_id, error in batch.refused]
        report.damaged += batch.damaged
        yield len(batch.photos) + len(batch.unchanged) + len(batch.refused)
    apply_updates(gallery, touched)


def _keep_vectors(
    bundle: Bundle,
    gallery: AnyGallery,
    photos: Sequence[Photo],
    sync: SyncSettings,
    looks: Mapping[str, NDArray[np.float32]],
    *,
    progress: bool,
) -> None:
    """Keep the vectors that draws are made with beside the photos."""
    if bundle.looks_twice and gallery.at_hand:
        keep_looks(bundle, gallery, photos, looks, progress=progress)
    named = read_names(gallery, bundle.text_key)
    if column := sync.names or (named.column if named is not None else ""):
        keep_names(bundle, gallery, column, progress=progress)
    if sync.windows or gallery.kept(Kept.WINDOWS) is not None:
        keep_windows(bundle, gallery, photos, progress=progress)
    keep_fold_vectors(bundle, gallery, photos, progress=progress)


def _measure(bundle: Bundle, gallery: AnyGallery, report: IndexReport) -> None:
    """Measure the operating point of a gallery, and set one if it has none."""
    measurement = measure_gallery(bundle, gallery, rule="keep")
    is_written = measurement.write(gallery)
    report.point, report.sets_threshold = measurement.point, is_written and measurement.sets_threshold
    report.rates, report.unanchored = measurement.measured.rates, measurement.measured.why


def recall_queries(bundle: Bundle) -> NDArray[np.float32] | None:
    """Return the calibration vectors, if any, which measure the recall of an approximate index."""
    return None if bundle.calibration is None else bundle.calibration.vectors


def _grouped(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches of the photos of WRITE_S; the last may be smaller."""
    waiting, written = list[Batch](), time.monotonic()
    for batch in batches:
        waiting.append(batch)
        if time.monotonic() - written >= WRITE_S:
            yield Batch.of(waiting)
            waiting, written = [], time.monotonic()
    yield Batch.of(waiting)


def _embedded(
    bundle: Bundle,
    embedder: Embedder | None,
    photos: Sequence[Photo],
    known: Mapping[str, str],
    batch_size: int,
    threads: int | None,
) -> Iterator[Batch]:
    """Return finished batches, made on this machine, or on a Ray cluster without an embedder."""
    if embedder is None:
        return ray_batches(bundle, photos, known, batch_size=batch_size)
    twice = likely_draws(bundle, photos) if bundle.looks_twice and not bundle.folds_key else ()
    return in_order(
        lambda batch: embed_batch(embedder, batch.photos, known, batch.contents(), twice=twice),
        read_ahead(photos, size=batch_size),
        threads=threads or os.cpu_count() or 1,
    )
