"""Items and photos that a run was fitted on, including those of the runs that it continues."""

from __future__ import annotations

from retrieval.bundle.fitted import Fitted, content_hash

from .run import Run


def fitted_on(run: Run) -> Fitted:
    """Return the training items of a run and of those that it continues, and the content of every photo of them."""
    items = set(run.splits.fit)
    photos = [photo for photo in run.photos() if photo.item_id in items]
    own = Fitted.of(items, (content_hash(photo.read(), photo.bbox) for photo in photos))
    return own.union(run.fitted_before)
