"""Limit on the photos that a synchronization may remove, so that an incomplete source does not empty a gallery."""

from __future__ import annotations

import math

from retrieval.errors import PruneRefused

from .plan import SyncPlan, SyncSettings

SHOWN = 3  # photo_ids in the error


def check_prune(plan: SyncPlan, sync: SyncSettings, *, adds: bool = True) -> None:
    """Raise PruneRefused if a synchronization would remove too many photos.

    `adds` says whether it adds the photos that the gallery does not have. If not, the gallery must have some of them.
    """
    if not (sync.prune and plan.gone):
        return
    count = plan.kept + len(plan.gone)
    removed = f"--prune would remove {len(plan.gone):,} of the gallery's {count:,} photos ({_first(plan.gone)})"
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
