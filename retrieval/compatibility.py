"""Checks that a bundle and a gallery belong together."""

from __future__ import annotations

import copy
from dataclasses import replace

from index.protocol import GalleryProtocol
from index.shell import command
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import OperatingPoint

from .errors import BundleMismatch


def require_match(bundle: Bundle, gallery: GalleryProtocol, *, to_add: bool = False) -> None:
    """Raise BundleMismatch if a bundle cannot search a gallery or, with `to_add`, cannot add photos to it.

    A gallery has vectors of the bundle's model, or of the model that the bundle is compatible with; in the latter case,
    only a bundle of that model can add photos. A bundle that does not verify matches can search a gallery with local
    features, but cannot add photos, because they would have none.
    """
    if gallery.embedding_id != bundle.embedding_id:
        if gallery.embedding_id != bundle.compatible_with:
            raise _mismatch(
                bundle, f"the gallery {gallery.path} was made by another model than the bundle {bundle.path}"
            )
        if to_add:
            raise _mismatch(
                bundle,
                f"the bundle {bundle.path} can only search the gallery {gallery.path}: its photos are embedded by the "
                "model that the bundle is compatible with",
                "Use the bundle that made the gallery. To change to the new model",
            )
        return
    if gallery.features_key == bundle.features_key or not (bundle.features_key or to_add):
        return
    if not bundle.features_key:
        message = f"the gallery {gallery.path} keeps local features, which the bundle {bundle.path} does not find"
    elif gallery.features_key:
        message = f"the gallery {gallery.path} keeps other local features than the bundle {bundle.path} verifies"
    else:
        message = f"the gallery {gallery.path} keeps no local features, which the bundle {bundle.path} verifies"
    raise _mismatch(bundle, message)


def in_gallery(bundle: Bundle, gallery: GalleryProtocol) -> Bundle:
    """Return a bundle for use in a gallery.

    If another model embedded the photos, the bundle's threshold does not apply, and only the gallery can set one.
    """
    if gallery.embedding_id == bundle.embedding_id:
        return bundle
    own, other = bundle.operating_point, copy.copy(bundle)
    other.operating_point = replace(OperatingPoint.uncalibrated(own.target_fpir), min_certainty=own.min_certainty)
    other.threshold, other.searches_other = other.operating_point.threshold, True
    return other


def _mismatch(bundle: Bundle, message: str, advice: str = "") -> BundleMismatch:
    again = f"{command('index', bundle.path, 'PHOTOS', '-o', 'NEW_GALLERY')}"
    remedy = f"{advice}, index the photos again: {again}" if advice else f"Index the photos again: {again}"
    return BundleMismatch(message, remedy=remedy)
