"""Printed covers for tests of geometric verification: many shapes, photographed from different sides."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance

from index.search.item_distance import DETAILS, NEAREST_PHOTO
from retrieval.bundle.bundle import FITTED, VERIFICATION, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.images import open_image
from retrieval.measuring.point import Point
from retrieval.verification.detector import detect
from retrieval.verification.settings import VerifierSettings
from retrieval.verification.verifier import GeometricVerifier

from .world import make_bundle

SIDE = 160
DETECTOR = VerifierSettings(points=120, side=320)
BY_DETAILS = replace(NEAREST_PHOTO, details=DETAILS)  # the nearest photo's distance, lowered by agreeing details


def draw_cover(item: int, number: int) -> Image.Image:
    """Return a photo of a cover: its own arrangement of small shapes on the same ground; photo 0 is the clean one."""
    shapes = np.random.default_rng((7, item))
    cover = Image.new("RGB", (SIDE, SIDE), (200, 200, 200))
    pen = ImageDraw.Draw(cover)
    for _ in range(70):
        x, y = (int(value) for value in shapes.integers(4, SIDE - 24, 2))
        width, height = (int(value) for value in shapes.integers(5, 22, 2))
        colour = tuple(int(value) for value in shapes.integers(0, 255, 3))
        draw = pen.ellipse if shapes.random() < 0.4 else pen.rectangle
        draw((x, y, x + width, y + height), fill=colour)
    if number == 0:
        return cover
    camera = np.random.default_rng((item, number))
    corners = np.array([(0, 0), (0, SIDE), (SIDE, SIDE), (SIDE, 0)]) + camera.uniform(-14, 14, (4, 2))
    turned = cover.transform((SIDE, SIDE), Image.Transform.QUAD, corners.ravel().tolist(), Image.Resampling.BICUBIC)
    return ImageEnhance.Brightness(turned).enhance(float(camera.uniform(0.75, 1.2)))


def write_covers(folder: Path, *, items: range, photos: range) -> Path:
    """Write a catalogue of one folder per item."""
    for item in items:
        (folder / f"cover-{item:02d}").mkdir(parents=True)
        for number in photos:
            draw_cover(item, number).save(folder / f"cover-{item:02d}" / f"{number}.png")
    return folder


@cache
def cover_verifier(items: range = range(500, 504)) -> GeometricVerifier:
    """Return a verifier whose vocabulary is fitted to covers of other items."""
    features = [detect(open_image(draw_cover(item, 0)), DETECTOR) for item in items]
    return GeometricVerifier.fit(features, DETECTOR, words=256)


def verified_bundle(
    folder: Path, *, name: str = "bundle", verifier: GeometricVerifier | None = None, target_fpir: float = 0.05
) -> Bundle:
    """Write a bundle around the tiny model that sets its threshold in the gallery, and may verify matches."""
    files = {FITTED: Fitted.of((), ()).pack()}
    if verifier is not None:
        files[VERIFICATION] = verifier.pack()
    point, distance = Point.uncalibrated(target_fpir), NEAREST_PHOTO if verifier is None else BY_DETAILS
    return make_bundle(folder, name=name, point=point, files=files, item_distance=distance)
