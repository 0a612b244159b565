"""Measurements of a gallery with a bundle, and how they are written to the gallery.

Measuring takes no lock. `GalleryMeasurement.write` takes it, compares what the measurement was made of, and writes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from index.database import POINT
from index.groups import GROUP, group_key, groups_by_item
from index.location import AnyGallery
from index.photos import CONTENT, Photos
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.catalogue.ids import nearest
from retrieval.catalogue.photos import Photo
from retrieval.errors import CalibrationError, DataError, ImageRefused
from retrieval.inspect.duplicates import is_copy
from retrieval.measuring.drawing import PartVectors, most_draws
from retrieval.measuring.draws import PROBE, REFERENCE, AllDraws, Probes, Rows
from retrieval.measuring.labelled import by_source
from retrieval.measuring.measure import Material, Measurement, Rule, draw, measure
from retrieval.measuring.point import CERTIFIED, Point
from retrieval.measuring.rates import VersionRates
from retrieval.measuring.sentences import Change
from retrieval.text import apart

from .kept import Kept, pack_draws, pack_queries, read_draws, read_folds, read_parts, read_queries
from .labelled import embed_queries
from .names import read_names
from .points import pack_points, read_points, served_point, stored_point

LOOKED_AT = 0.75  # share of the photos that draws are made of whose second look must be known
TRIES = 5  # to read what the photos are made of and the photos themselves in one version


@dataclass(frozen=True)
class GalleryMeasurement:
    """A measurement of a gallery, before it is written."""

    bundle: Bundle
    measured: Measurement
    served: Point  # the point that serves now: the gallery's, or else the bundle's
    before: Point | None  # the gallery's point for the bundle
    is_new: bool = True  # whether the draws were made now
    stored: bytes | None = None  # the points that the gallery kept when it was measured
    action: str = "calibrate"  # for the gallery's list of changes
    labelled: Probes | None = None  # labelled queries to keep
    refused: Sequence[tuple[str, str]] = ()  # photo_id and reason for each labelled photo that was not used
    made_of: tuple[int, ...] = ()  # hashes of what the gallery kept to make draws with

    @property
    def draws(self) -> AllDraws:
        """The draws."""
        return self.measured.draws

    @property
    def point(self) -> Point | None:
        """The operating point that follows from the draws, None if there is none."""
        return self.measured.point

    @property
    def after(self) -> Point:
        """The operating point; raise CalibrationError if there is none."""
        return self.measured.required

    @property
    def change(self) -> Change:
        """The point beside the one that serves now; raise CalibrationError if there is none."""
        return Change(self.served, self.after, self.draws)

    @property
    def sets_threshold(self) -> bool:
        """Return whether the threshold or its status is new, and not just its rates."""
        before, point = self.before, self.point
        return point is not None and (
            before is None or (point.threshold, point.status) != (before.threshold, before.status)
        )

    @property
    def is_news(self) -> bool:
        """Return whether there is anything to keep."""
        return self.point is not None and (self.is_new or self.point != self.before)

    def summary(self) -> str:
        """Return a sentence on a threshold that was set or tightened, "" if none was."""
        if self.point is None or not self.sets_threshold:
            return ""
        if self.before is None:
            return f"The gallery got its first threshold, {self.point.threshold:.4f}."
        rates, old, new = VersionRates.of(self.draws, self.before), self.before.threshold, self.point.threshold
        certified = self.before.status == CERTIFIED
        rate = None if rates is None else rates.fpir_upper(old) if certified else rates.expected(old)
        shown, target = apart(self.before.target_fpir if rate is None else rate, self.before.target_fpir)
        clause = "" if rate is None else f" of {'up to ' if certified else ''}{shown}"
        if new == old:
            return f"The threshold {old:.4f} is no longer certified: it is {self.point.status} for the items left."
        return (
            f"The threshold was tightened from {old:.4f} to {new:.4f}, because its "
            f"FPIR{clause} no longer kept the target of {target}."
        )

    def write(self, gallery: AnyGallery, *, actor: str | None = None) -> bool:
        """Keep the draws, the point and any new labelled queries as one change, which the log ascribes to `actor`.

        If another point was set in the meantime, the draws are kept and the point is left alone. If labelled queries or
        windows were kept in the meantime, nothing is kept: whoever kept them has made, or will make, draws with them.

        Returns whether the draws were kept and the point is the gallery's.
        """
        if not self.is_news:
            return False
        gallery.lock()
        if self.made_of != _made_of(gallery):
            return False
        contents: dict[str, bytes | None] = {Kept.DRAWS: pack_draws(self.draws)}
        action, is_stored = "measure the threshold", gallery.kept(POINT) == self.stored
        if self.point != self.before and is_stored:
            contents[POINT] = pack_points(self.stored, self.bundle, self.point)
            action = self.action if self.sets_threshold else action
        if self.labelled is not None:
            contents[Kept.QUERIES] = pack_queries(self.labelled, self.bundle.features_key)
        gallery.keep(contents, action, actor=actor)
        return is_stored

    def set_in(self, gallery: AnyGallery, *, actor: str | None = None) -> None:
        """Write as `write` does; raise CalibrationError if there is no point, or another one stays in the gallery."""
        point = self.after
        if not self.write(gallery, actor=actor):
            raise CalibrationError(
                f"the threshold {point.threshold:.4f} was not set, because another one was set, or photos were "
                "labelled, during the measurement",
                remedy="Look at the threshold that serves now, and measure again if it is not the right one",
            )


def measure_gallery(
    bundle: Bundle,
    gallery: AnyGallery,
    *,
    rule: Rule,
    target_fpir: float | None = None,
    photos: Sequence[Photo] | None = None,
    beside: str = "",
    certify: bool = False,
    cap: float = math.inf,
) -> GalleryMeasurement:
    """Measure a gallery as it is now, without writing anything.

    Parameters
    ----------
    rule:
        "set" makes draws and sets a new point. "keep" and "tighten" (`measure`) use the newest draws that are kept, and
        set a point only where there is none; it goes on with as many looks at a photo.
    target_fpir:
        Target FPIR of a new point, by default that of the gallery's point or the bundle's.
    photos:
        Users' photos with item ids, or "" for others. They replace the labelled queries, those of `beside` if given.
    certify:
        Certify the target, or set no point if the items cannot certify it (`set_threshold`).
    cap:
        Upper limit of the first threshold of a gallery.

    Raises
    ------
    DataError
        If no labelled photo can be used.
    """
    stored, made_of = gallery.kept(POINT), _made_of(gallery)
    before = stored_point(stored, bundle)
    labelled, refused = (None, []) if photos is None else _embedded(bundle, gallery, photos, beside)
    known = None if rule == "set" else kept_draws(bundle, gallery)
    once = rule != "set" and before is not None and before.basis.looks is None
    now, draws = known or draw_gallery(bundle, gallery, labelled=labelled, twice=not once)
    measured = measure(
        now,
        bundle.item_distance,
        draws=draws,
        before=before or (None if rule == "set" else _carried(stored, bundle, draws, cap)),
        rule="keep" if before is None and rule != "set" else rule,
        target_fpir=(before or bundle.operating_point).target_fpir if target_fpir is None else target_fpir,
        certify=certify,
        cap=cap,
    )
    return GalleryMeasurement(
        bundle,
        measured,
        served=served_point(stored, bundle, gallery),
        before=before,
        is_new=known is None,
        stored=stored,
        action="calibrate" if rule == "set" or before is None else "tighten the threshold",
        labelled=labelled,
        refused=refused,
        made_of=made_of,
    )


def changed_share(bundle: Bundle, gallery: AnyGallery) -> float:
    """Return the share of a gallery's photos that changed since its draws were made.

    It is 1 without draws, and 0 if the draws belong to another bundle, which measures the gallery itself.
    """
    draws = read_draws(gallery)
    if draws is None or not draws.has_rivals:
        return 1.0
    if draws.model != bundle.draws_id:
        return 0.0
    return min(1.0, gallery.snapshot().changes_since(draws.mark) / max(1, draws.photos))


def _carried(stored: bytes | None, bundle: Bundle, draws: AllDraws, cap: float) -> Point | None:
    """Return the point of another bundle with the same draws and target if it keeps its promise; None otherwise.

    Such a bundle is another export of the same run.
    """
    target, kept = bundle.operating_point.target_fpir, reversed(read_points(stored))
    same = (k.point for k in kept if k.draws_id == bundle.draws_id and k.point.target_fpir == target)
    point = next(same, None)
    rates = None if point is None else VersionRates.of(draws, point)
    is_kept = point is not None and rates is not None and not rates.broken(point) and point.threshold <= cap
    return point if is_kept else None


def kept_draws(bundle: Bundle, gallery: AnyGallery) -> tuple[Photos, AllDraws] | None:
    """Return the current photos of a gallery and the draws that it keeps if they are of exactly these, else None."""
    draws = read_draws(gallery)
    if draws is None or not draws.has_rivals or draws.model != bundle.draws_id:
        return None
    now = gallery.snapshot()
    return None if now.changes_since(draws.mark) else (now, draws)


def _embedded(
    bundle: Bundle, gallery: AnyGallery, photos: Sequence[Photo], beside: str
) -> tuple[Probes, list[tuple[str, str]]]:
    """Return labelled queries, with kept ones of other sources if `beside` is one, and id and reason of refused photos.

    Those that the model was fitted on are refused.
    """
    seen = {photo.photo_id for photo in photos if bundle.fitted is not None and _is_fitted(photo, bundle.fitted)}
    if len(seen) == len(photos):
        raise DataError("the model was fitted on all of the labelled photos", remedy="Label other photos")
    queries, refused = embed_queries(bundle, gallery, [photo for photo in photos if photo.photo_id not in seen])
    refused += [(photo_id, "the model was fitted on this photo") for photo_id in sorted(seen)]
    gone = _gone(queries, gallery)
    near = nearest(gone, {item for _, item, _ in gallery.values(GROUP)}) if gone else {}
    kept = read_queries(gallery, bundle.features_key) if beside else None
    others = [] if kept is None else [row for row, name in enumerate(kept.ids) if not name.startswith(f"{beside}/")]
    joined = queries if kept is None else Probes.joined([kept.where(others), queries])
    told = "the gallery has no item {}: use an item id of the gallery{}, or leave it empty if the item is not there"
    return joined, refused + [
        (photo_id, told.format(item, f" ({near[item]})" if item in near else ""))
        for photo_id, item in zip(queries.ids, queries.items, strict=True)
        if item in gone
    ]


def _is_fitted(photo: Photo, fitted: Fitted) -> bool:
    """Return whether a model was fitted on a photo, whatever its item is. What cannot be read is refused later."""
    try:
        return fitted.contains("", content_hash(photo.read(), photo.bbox))
    except ImageRefused:
        return False


def _made_of(gallery: AnyGallery) -> tuple[int, ...]:
    return tuple(hash(gallery.kept(name)) for name in (Kept.QUERIES, Kept.LOOKS, Kept.WINDOWS, Kept.NAMES, Kept.FOLDS))


def draw_gallery(
    bundle: Bundle, gallery: AnyGallery, *, labelled: Probes | None = None, twice: bool = True
) -> tuple[Photos, AllDraws]:
    """Return the photos of the newest version and their draws, with given labelled queries or the kept ones.

    Without `twice`, searches take no second look at a photo.
    """
    queries = read_queries(gallery, bundle.features_key) if labelled is None else labelled
    probes = {**_calibration_photos(bundle), **_usable(queries, gallery)}
    for _ in range(TRIES):  # others may change the gallery meanwhile
        version, now = gallery.version, gallery.snapshot().with_pictures(partial(is_copy, gallery.thumbnail))
        fitted, groups = _fitted(bundle.fitted, gallery, probes)
        now.item_numbers(sorted({*fitted, *(item for source in probes.values() for item in source.items)}))
        material = Material(
            probes=probes,
            fitted=fitted,
            fitted_groups=groups,
            looks=_looks(bundle, gallery, now, fitted) if bundle.looks_twice and twice else None,
            windows=read_parts(gallery, Kept.WINDOWS),
            names=read_names(gallery, bundle.text_key),
            folds=read_folds(gallery, bundle.folds_key) if bundle.folds_key else None,
            fold_of=_fold_of(bundle.fitted, gallery, fitted) if bundle.folds_key else {},
            verifier=bundle.verifier,
            model=bundle.draws_id,
            version=version,
        )
        if gallery.version == version:
            break
    return now, draw(now, bundle.item_distance, material)


def _looks(bundle: Bundle, gallery: AnyGallery, now: Photos, fitted: Collection[str]) -> PartVectors | None:
    """Return the second looks that a gallery keeps, None if it lacks those of too many photos that are drawn."""
    looks = read_parts(gallery, Kept.LOOKS)
    if looks is None:
        return None
    drawn = drawn_photos(bundle, now, fitted)
    known = np.isin(drawn, now.positions(looks.ids.tolist())).sum() >= LOOKED_AT * len(drawn)
    return looks if known else None


def drawn_photos(bundle: Bundle, now: Photos, fitted: Collection[str]) -> Rows:
    """Return the positions of the photos that own draws are made of, given the items that the model was fitted on.

    With fold models, these are photos of the fitted items, too.
    """
    numbers, most = list(now.item_numbers(sorted(fitted)).values()), most_draws(bundle.verifier)
    own = now.sample(most, excluded=numbers)
    if not bundle.folds_key:
        return own
    others = np.setdiff1d(now.items_at(now.sample(now.size)), numbers)
    return np.concatenate([own, now.sample(most, excluded=others.tolist())])


def fitted_items(bundle: Bundle, gallery: AnyGallery) -> frozenset[str]:
    """Return the items of a gallery that a model may have been fitted on."""
    return _fitted(bundle.fitted, gallery, {})[0]


def _fitted(
    known: Fitted | None, gallery: AnyGallery, probes: Mapping[str, Probes]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the items here that a model may have been fitted on, and the keys of their groups.

    Without a list of fitted items, these are all items. An item is fitted if its id or a photo of it is in the list, or
    if another item of its group is in the list, even one that is gone from the gallery.
    """
    if known is not None and not len(known):
        return frozenset(), frozenset()
    group = groups_by_item(gallery.values(GROUP))
    keys = {key for source in probes.values() for key in source.keys if key not in source.items}
    if known is None:
        return frozenset(group), frozenset({group_key("", name) for name in group.values() if name} | keys)
    fitted = {item for _, item, content in gallery.values(CONTENT) if known.contains(item, content)}
    theirs = {group.get(item, "") for item in fitted}
    theirs |= {name for name in {*group.values()} - {""} if known.contains(group_key("", name), None)}
    theirs -= {""}
    fitted |= {item for item, name in group.items() if name in theirs}
    return frozenset(fitted), frozenset(
        {group_key("", name) for name in theirs} | {key for key in keys if known.contains(key, None)}
    )


def _gone(queries: Probes, gallery: AnyGallery) -> set[str]:
    return {item for item in set(queries.items) if item and not gallery.photos(item)}


def _usable(queries: Probes | None, gallery: AnyGallery) -> dict[str, Probes]:
    """Return labelled queries by source, without queries for items that are gone: they may have another id now."""
    if queries is None:
        return {}
    gone = _gone(queries, gallery)
    return by_source(queries.where([row for row, item in enumerate(queries.items) if item not in gone]))


def _fold_of(known: Fitted | None, gallery: AnyGallery, fitted: Collection[str]) -> dict[str, int]:
    """Return the fold of each fitted item that one fold model was fitted without."""
    if known is None:
        return {}
    moved = {
        item
        for _, item, content in gallery.values(CONTENT)
        if content and (known.seen_by_all(content) or known.fold_of(content) not in (None, known.fold_of(item)))
    }  # items with photos of another fold or of several, such as merged ones: every model was fitted on some of them
    named = groups_by_item(gallery.values(GROUP))
    folds_of = defaultdict[str, set[int]](set)  # folds of the items of a group, or of an item without a group
    for item, group in named.items():
        for name in {item, group_key(item, group)}:
            if (fold := known.fold_of(name)) is not None:
                folds_of[group or f" {item}"].add(fold)
    fold_of = {item: folds_of[named.get(item, "") or f" {item}"] for item in fitted if item not in moved}
    return {item: next(iter(several)) for item, several in fold_of.items() if len(several) == 1}


def _calibration_photos(bundle: Bundle) -> dict[str, Probes]:
    """Return the calibration photos of a bundle by source, with local features if the bundle verifies matches."""
    calibration, stored = bundle.calibration, bundle.calibration_features
    if calibration is None:
        return {}
    items = [str(label) for label in calibration.scores.labels]
    known = dict(zip(calibration.gallery.items, calibration.gallery.groups, strict=True))
    groups = [known.get(item, "") for item in items]
    ids = calibration.photo_ids.tolist()
    queries = Probes(calibration.vectors, ids, items, groups=groups, looks=calibration.looks)
    sources = {PROBE: queries, REFERENCE: calibration.gallery}
    if bundle.verifier is None:
        return sources
    return {name: replace(each, features=[stored[photo] for photo in each.ids]) for name, each in sources.items()}
