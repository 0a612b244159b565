"""Checks that a bundle and a gallery belong together."""

from __future__ import annotations

from index.location import AnyGallery
from retrieval.bundle.bundle import Bundle
from retrieval.errors import command

from .errors import BundleMismatch


def require_match(bundle: Bundle, gallery: AnyGallery, *, to_add: bool = False) -> None:
    """Raise BundleMismatch if a bundle cannot search a gallery or, with `to_add`, cannot add photos to it.

    A bundle that does not verify matches can search a gallery with local features, but cannot add photos, because they
    would have none.
    """
    if gallery.embedding_id != bundle.embedding_id:
        raise _mismatch(bundle, f"the gallery {gallery.path} was made by another model than the bundle {bundle.path}")
    if gallery.features_key == bundle.features_key or not (bundle.features_key or to_add):
        return
    if not bundle.features_key:
        message = f"the gallery {gallery.path} keeps local features, which the bundle {bundle.path} does not find"
    elif gallery.features_key:
        message = f"the gallery {gallery.path} keeps other local features than the bundle {bundle.path} verifies"
    else:
        message = f"the gallery {gallery.path} keeps no local features, which the bundle {bundle.path} verifies"
    raise _mismatch(bundle, message)


def _mismatch(bundle: Bundle, message: str) -> BundleMismatch:
    again = f"{command('index', bundle.path, 'PHOTOS', '-o', 'NEW_GALLERY')}"
    return BundleMismatch(message, remedy=f"Index the photos again: {again}")
