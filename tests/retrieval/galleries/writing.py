"""Measure a gallery and keep the result, as the commands and the server do."""

from __future__ import annotations

from index.location import AnyGallery
from retrieval.bundle.bundle import Bundle
from retrieval.galleries.measured import GalleryMeasurement, measure_gallery
from retrieval.measuring.measure import Rule


def remeasure(bundle: Bundle, gallery: AnyGallery, *, rule: Rule = "tighten") -> GalleryMeasurement:
    measurement = measure_gallery(bundle, gallery, rule=rule)
    measurement.write(gallery)
    return measurement
