"""Plan of a synchronization: how the photos of a catalogue differ from those of a gallery, found without reading them.

`sync_table` carries out the changes that need no photo: new items and metadata, removals.

A photo is read, and embedded again if its content differs, where its bounding box or the state of its file changed, or
the gallery does not know that state. Otherwise a changed item or metadata is an update, which needs no embedding.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from index.checks import check_ids, check_lengths, check_values, encode_metadata
from index.location import AnyGallery
from index.photos import CONTENT, NONE
from retrieval.catalogue.ids import as_spelled
from retrieval.catalogue.photos import Photo, plain
from retrieval.errors import InvalidParameter, PruneRefused, counted
from retrieval.process import no_collection

from .worker import BOX, FILE, catalogue_metadata, stored_metadata

Facts = tuple[str, Mapping[str, Any]]  # item_id and metadata
BATCH = 4096  # photos per transaction
SHOWN = 3  # photo_ids in an error
AT_MOST = 0.5  # share of a gallery's photos that may be removed unless more is allowed


@dataclass(frozen=True)
class SyncSettings:
    """Options of a synchronization."""

    prune: bool = False  # remove the gallery's photos that are not in the catalogue
    checksum: bool = False  # read every photo, also those whose file has the same size and time
    columns: Mapping[str, str] = field(default_factory=dict)  # kinds of metadata columns; stored texts are converted
    prune_at_most: float = AT_MOST  # largest share of the gallery's photos that `prune` may remove
    windows: bool = False  # embed the windows of some photos, for draws of searches with windows
    names: str | None = None  # column with the names of items, to embed them for draws of searches by words

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.prune_at_most <= 1:
            raise InvalidParameter("prune_at_most", "be between 0 and 1", self.prune_at_most)


@dataclass(frozen=True, slots=True)
class Update:
    """A photo of the gallery that gets another item, other metadata or another file state."""

    photo: Photo
    item_id: str  # in the gallery
    metadata: Mapping[str, Any]  # in the gallery, without reserved keys
    stored: Mapping[str, Any]  # to be written, with reserved keys
    is_change: bool = True  # of the item or the metadata, not only of the file state

    def describe(self) -> str:
        """Describe what changes: "a.jpg: item kiwi -> lime, price 3 -> 4"."""
        new = catalogue_metadata(self.photo)
        names = sorted(name for name in {*self.metadata, *new} if not _same(self.metadata, new, name))
        changes = [f"{name} {_shown(self.metadata.get(name))} -> {_shown(new.get(name))}" for name in names]
        if self.item_id != self.photo.item_id:
            changes.insert(0, f"item {self.item_id} -> {self.photo.item_id}")
        return f"{self.photo.photo_id}: {', '.join(changes)}"


@dataclass
class SyncPlan:
    """A plan of a synchronization: the photos to embed, update, remove or leave."""

    new: list[Photo] = field(default_factory=list)
    read: list[Photo] = field(default_factory=list)  # in the gallery; embedded again if their content differs
    reasons: dict[str, str] = field(default_factory=dict)  # why they are read
    updates: list[Update] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)  # photo_ids in the gallery that the catalogue does not have
    unchanged: int = 0
    states: dict[str, str] = field(default_factory=dict)  # of the files of `new` and `read`
    stored: dict[str, Facts] = field(default_factory=dict)  # of `read`, as the gallery has them
    refused: dict[str, str] = field(default_factory=dict)  # why photos of `new`, `read` and `updates` are not stored

    @property
    def kept(self) -> int:
        """Return the number of photos of the catalogue that the gallery has."""
        return self.unchanged + len(self.updates) + len(self.read)

    @property
    def changed(self) -> list[Photo]:
        """Return the photos to embed, read or update."""
        return [*self.new, *self.read, *(update.photo for update in self.updates)]

    @property
    def known(self) -> dict[str, str]:
        """Return the content hashes of the photos to read."""
        return {photo_id: metadata[CONTENT] for photo_id, (_, metadata) in self.stored.items() if CONTENT in metadata}

    def update_of(self, photo: Photo) -> Update | None:
        """Return the update of a photo that was read and has the same content, None if it needs none."""
        item_id, metadata = self.stored[photo.photo_id]
        state = self.states.get(photo.photo_id, "")
        update = _update(photo, item_id, metadata, state)
        if update is None and state and _reason_to_read(photo, state, metadata):  # or the next run would read it again
            return Update(photo, item_id, {}, _stored(photo, metadata, state), is_change=False)
        return update

    def sections(self) -> list[tuple[str, list[str]]]:
        """Return a title (of one photo) and one line per photo for each kind of change."""
        new = [f"{photo.photo_id}: item {photo.item_id}" for photo in self.new if photo.photo_id not in self.refused]
        read = [f"{photo_id}: {why}" for photo_id, why in self.reasons.items() if photo_id not in self.refused]
        updates = [update.describe() for update in self.updates if update.photo.photo_id not in self.refused]
        return [
            ("photo to add", new),
            ("photo to read, and to embed if its content differs", read),
            ("photo to update", updates),
            ("photo of the gallery, not in the catalogue", self.gone),
            ("photo refused", [f"{photo_id}: {why}" for photo_id, why in self.refused.items()]),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        names = ("add", "read", "update", "gone")
        lines = {name: lines for name, (_, lines) in zip(names, self.sections()[:-1], strict=True)}
        refused = [{"photo_id": photo_id, "reason": reason} for photo_id, reason in self.refused.items()]
        return {**lines, "refused": refused, "unchanged": self.unchanged}


def sync_plan(
    photos: Sequence[Photo],
    gallery: AnyGallery | None,
    *,
    checksum: bool = False,
    with_files: bool = True,
    prune: bool = False,
) -> SyncPlan:
    """Compare photos with a gallery (None: an empty one). An item that the gallery has keeps its spelling.

    With `checksum`, every photo of the gallery is to be read. Without `with_files`, none is: the photos have no files.
    A gallery on Milvus is asked for these photos alone, and for the others only to `prune` them.
    """
    with no_collection():
        stored, known = _stored_of(photos, gallery, every=prune or gallery is None or gallery.at_hand)
        plan = SyncPlan()
        for photo in as_spelled(photos, known):
            facts = stored.pop(photo.photo_id, None)
            _compare(plan, photo, facts, checksum=checksum, with_files=with_files)
    plan.gone = list(stored)
    return plan


def _stored_of(
    photos: Sequence[Photo], gallery: AnyGallery | None, *, every: bool
) -> tuple[dict[str, Facts], Collection[str]]:
    """Return the stored facts of photos, or of `every` photo of a gallery, and the items that may be theirs."""
    if gallery is None:
        return {}, ()
    if every:
        stored = {row[0]: row[1:] for row in gallery.photos()}
        return dict(stored), {item for item, _ in stored.values()}
    now, ids, items = gallery.snapshot(), [photo.photo_id for photo in photos], {photo.item_id for photo in photos}
    positions = now.positions(ids)
    found = now.photos_at(positions[positions != NONE])
    return {row[0]: row[1:] for row in found}, now.item_numbers([*{*items, *map(plain, items), *ids}]).keys()


def _compare(plan: SyncPlan, photo: Photo, facts: Facts | None, *, checksum: bool, with_files: bool) -> None:
    """Add a photo to a plan; `facts` are those in the gallery, None if it does not have the photo."""
    state = photo.state()
    if facts is None:
        plan.new.append(photo)
        plan.states[photo.photo_id] = state
        return
    item_id, metadata = facts
    reason = "its content is to be compared" if checksum else _reason_to_read(photo, state, metadata)
    if with_files and reason:
        plan.read.append(photo)
        plan.reasons[photo.photo_id] = reason
        plan.states[photo.photo_id], plan.stored[photo.photo_id] = state, facts
        return
    update = _update(photo, item_id, metadata, state)
    if update is None:
        plan.unchanged += 1
    else:
        plan.updates.append(update)


def _reason_to_read(photo: Photo, state: str, metadata: Mapping[str, Any]) -> str:
    """Return why a photo must be read to tell whether its content changed, "" if it is known not to have changed."""
    if not state or FILE not in metadata:
        return "whether its content changed is unknown"
    if metadata.get(BOX) != (photo.bbox and list(photo.bbox)):
        return f"bbox {_shown(metadata.get(BOX))} -> {_shown(photo.bbox and list(photo.bbox))}"
    return "" if metadata[FILE] == state else "its file changed"


def _update(photo: Photo, item_id: str, metadata: Mapping[str, Any], state: str) -> Update | None:
    old = {name: value for name, value in metadata.items() if name[:1] != "_"}
    new = catalogue_metadata(photo)
    if item_id == photo.item_id and old == new and all(type(new[name]) is type(value) for name, value in old.items()):
        return None
    return Update(photo, item_id, old, _stored(photo, metadata, state))


def _stored(photo: Photo, metadata: Mapping[str, Any], state: str) -> dict[str, Any]:
    """Return what to store with a photo of the same content; `metadata` is what the gallery has."""
    reserved = {name: value for name, value in metadata.items() if name.startswith("_")}
    return {**reserved, **stored_metadata(photo, metadata.get(CONTENT, ""), state)}


def _same(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> bool:
    """Return whether both have a key with the same JSON value: 1 and True are equal in Python, and 1 and 1.0."""
    return name in old and name in new and old[name] == new[name] and type(old[name]) is type(new[name])


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)


def check_prune(plan: SyncPlan, sync: SyncSettings, *, adds: bool = True) -> None:
    """Raise PruneRefused if a synchronization would remove too many photos.

    `adds` says whether it adds the photos that the gallery does not have. If not, the gallery must have some of them.
    """
    if not (sync.prune and plan.gone):
        return
    count = plan.kept + len(plan.gone)
    removed = (
        f"--prune would remove {len(plan.gone):,} of the gallery's {counted(count, 'photo')} ({_first(plan.gone)})"
    )
    if not plan.kept and not (adds and plan.new):
        raise PruneRefused(f"{removed} and keep none", remedy="Check that the photos are those of this gallery")
    share = len(plan.gone) / count
    if share > sync.prune_at_most:
        enough = math.ceil(100 * share) / 100
        raise PruneRefused(
            f"{removed}, more than the share of {sync.prune_at_most:g} that it may remove",
            remedy=f"Check that the source is complete. If it is, add --prune-at-most {enough:g} "
            f"(over HTTP and in Python: prune_at_most)",
        )


def _first(photo_ids: list[str]) -> str:
    more = ", …" if len(photo_ids) > SHOWN else ""
    return f"{', '.join(photo_ids[:SHOWN])}{more}"


def apply_updates(gallery: AnyGallery, updates: Sequence[Update], *, actor: str | None = None) -> int:
    """Update photos and return their number."""
    for start in range(0, len(updates), BATCH):
        block = updates[start : start + BATCH]
        gallery.update(
            [update.photo.photo_id for update in block],
            [update.photo.item_id for update in block],
            [update.stored for update in block],
            actor=actor,
        )
    return len(updates)


def remove_gone(gallery: AnyGallery, photo_ids: Sequence[str], *, actor: str | None = None) -> int:
    """Remove photos and return their number."""
    return sum(
        gallery.remove(photo_ids=photo_ids[start : start + BATCH], actor=actor)
        for start in range(0, len(photo_ids), BATCH)
    )


def plan_table(gallery: AnyGallery, photos: Sequence[Photo], sync: SyncSettings) -> SyncPlan:
    """Return what `sync_table` would do.

    Raises PruneRefused if too many photos would be removed, and InvalidParameter if an update cannot be stored.
    """
    plan = sync_plan(photos, gallery, with_files=False, prune=sync.prune)
    check_prune(plan, sync, adds=False)
    check_lengths("item_ids", check_ids("item_ids", [update.photo.item_id for update in plan.updates]))
    check_values([update.stored for update in plan.updates], gallery.columns())
    for update in plan.updates:
        encode_metadata(update.stored)
    return plan


def sync_table(
    gallery: AnyGallery, photos: Sequence[Photo], sync: SyncSettings, *, actor: str | None = None
) -> SyncPlan:
    """Update the items and metadata of a gallery's photos from a table without files; return the plan.

    Photos that the table does not have are removed if `sync` says so.

    Raises what `plan_table` raises, before anything is written.
    """
    gallery.lock()
    plan = plan_table(gallery, photos, sync)
    apply_updates(gallery, plan.updates, actor=actor)
    if sync.prune:
        remove_gone(gallery, plan.gone, actor=actor)
    return plan
