"""Changes of a synchronization that need no embedding: new items and metadata, removals."""

from __future__ import annotations

from collections.abc import Sequence

from index.protocol import GalleryProtocol
from retrieval.catalogue.photos import Photo

from .plan import SyncPlan, SyncSettings, Update, sync_plan
from .prune import check_prune

BATCH = 4096  # photos per transaction


def apply_updates(gallery: GalleryProtocol, updates: Sequence[Update], *, actor: str | None = None) -> int:
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


def remove_gone(gallery: GalleryProtocol, photo_ids: Sequence[str], *, actor: str | None = None) -> int:
    """Remove photos and return their number."""
    return sum(
        gallery.remove(photo_ids=photo_ids[start : start + BATCH], actor=actor)
        for start in range(0, len(photo_ids), BATCH)
    )


def plan_table(gallery: GalleryProtocol, photos: Sequence[Photo], sync: SyncSettings) -> SyncPlan:
    """Return what `sync_table` would do; raises PruneRefused if too many photos would be removed."""
    plan = sync_plan(photos, gallery, with_files=False)
    check_prune(plan, sync, adds=False)
    return plan


def sync_table(
    gallery: GalleryProtocol, photos: Sequence[Photo], sync: SyncSettings, *, actor: str | None = None
) -> SyncPlan:
    """Update the items and metadata of a gallery's photos from a table without files; return the plan.

    Photos that the table does not have are removed if `sync` says so.

    Raises PruneRefused if too many photos would be removed.
    """
    gallery.lock()
    plan = plan_table(gallery, photos, sync)
    apply_updates(gallery, plan.updates, actor=actor)
    if sync.prune:
        remove_gone(gallery, plan.gone, actor=actor)
    return plan
