"""Decoding the bytes of a photo to the pixels of a model, compared with other decoders.

    python -m research.benchmarks.decoding [--rounds 7]

Photos of grocery as they are (168 pixels), and enlarged to 2 and 12 megapixels with the noise of a sensor, in four
formats. The decoders take turns on each photo; figures are medians over rounds of CPU time. Every decoder has to give
the centred square of the photo at the size of the model. The floor is the fastest one that gives the same pixels as
ours. The fastest of all may give other pixels, which differ from those of the file, decoded in full and resampled, by
at most LARGEST levels of 255 on average. Packages that are not installed are named and skipped: simplejpeg, PyTurboJPEG
(the variable TURBOJPEG may name its library), pyvips, OpenCV and pillow-heif.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.errors import ImageRefused
from retrieval.images import Preprocessing, center_crop_resize, open_image

from .decoders import DECODERS, OURS, Decoder, Pixels
from .decoders import ours as open_pixels
from .photo_sizes import SETTINGS, SIZES, encoded, enlarged
from .tables import NONE, Recorder, parser_of

AS_THEY_ARE = "168 px"
LARGEST = 2.0  # mean difference of correct pixels, in levels of 255
TURN_S = 0.05  # shortest turn in seconds: small photos are decoded several times
EQUAL = 0.05  # mean difference of pixels that count as the same, in levels: versions of a decoder may round differently
COLUMNS = ("photo", "decoder", "CPU per photo, ms", "mean difference from the file, levels", "from ours")
FLOOR = (
    "photo",
    "megabytes",
    "ours, ms",
    "floor",
    "floor, ms",
    "ours / floor",
    "fastest",
    "fastest, ms",
    "ours / fastest",
)


@dataclass(frozen=True)
class Kind:
    """Photos of a size and format, and their pixels for the model when decoded in full."""

    name: str
    form: str
    files: Sequence[bytes]
    expected: Sequence[Pixels]

    def differences(self, decoder: Decoder, preprocessing: Preprocessing) -> tuple[float, float]:
        """Return the mean differences of a decoder's pixels from the expected ones and from ours."""
        made = [decoder.pixels(file, preprocessing).astype(np.int16) for file in self.files]
        ours = [open_pixels(file, preprocessing) for file in self.files]
        return _mean_difference(made, self.expected), _mean_difference(made, ours)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--photos", type=int, default=4, help="Photos of each size.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--side", type=int, default=160, help="Side of the model's input in pixels.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    photos = sorted((data / "data/grocery/images").glob("*/*.jpg"))
    photos = photos[:: len(photos) // arguments.photos][: arguments.photos]
    preprocessing = Preprocessing(size=arguments.side)
    there = [decoder for decoder in DECODERS if decoder.is_installed]
    floors: list[tuple[str, ...]] = []
    with Recorder("decoding", arguments) as record:
        record.table("decoders", COLUMNS)
        for size in (AS_THEY_ARE, *SIZES):
            for form in SETTINGS:
                try:
                    kind = kind_of(photos, size, form, preprocessing)
                except ImageRefused as error:
                    floors.append((_name(size, form), NONE, NONE, f"refused: {error.message}", *[NONE] * 5))
                    continue
                floors.append(compare(record, kind, there, preprocessing, arguments.rounds))
        record.table("floor", FLOOR, floors)
        missing = [decoder.name for decoder in DECODERS if not decoder.is_installed]
        record.table("not installed", ("decoder",), [(name,) for name in missing or [NONE]])


def kind_of(photos: Sequence[Path], size: str, form: str, preprocessing: Preprocessing) -> Kind:
    """Return the photos in a size and format; raise ImageRefused if they are too large."""
    files, expected = [], []
    for photo in photos:
        as_it_is = size == AS_THEY_ARE
        image = Image.open(photo).convert("RGB") if as_it_is else enlarged(photo, SIZES[size])
        files.append(photo.read_bytes() if as_it_is and form == "JPEG" else encoded(image, form))
        expected.append(center_crop_resize(open_image(files[-1]), preprocessing))
    return Kind(_name(size, form), form, files, expected)


def compare(
    record: Recorder, kind: Kind, decoders: Sequence[Decoder], preprocessing: Preprocessing, rounds: int
) -> tuple[str, ...]:
    """Record the decoders' times for photos of a kind, and return the row of the floor."""
    differences: dict[Decoder, tuple[float, float]] = {}
    for decoder in decoders:
        if kind.form in decoder.formats:
            try:
                differences[decoder] = kind.differences(decoder, preprocessing)
            except Exception as error:  # every package has its own errors
                record.add(kind.name, decoder.name, NONE, f"cannot decode it: {type(error).__name__}", NONE)
    times: dict[Decoder, list[float]] = {decoder: [] for decoder in differences}
    for number in range(rounds):
        turns = list(times)
        for decoder in turns[number % len(turns) :] + turns[: number % len(turns)]:
            times[decoder].append(seconds(decoder, kind, preprocessing))
    for decoder, values in times.items():
        record.add(kind.name, decoder.name, _ms(values), *(f"{value:.2f}" for value in differences[decoder]))
    own = next(decoder for decoder in times if decoder.name == OURS)
    others = [decoder for decoder in times if decoder is not own]
    same = [decoder for decoder in others if differences[decoder][1] <= EQUAL]
    right = [decoder for decoder in others if differences[decoder][0] <= LARGEST]
    size = f"{sum(map(len, kind.files)) / len(kind.files) / 1e6:.3g}"
    return kind.name, size, _ms(times[own]), *_beside(own, same, times), *_beside(own, right, times)


def _beside(own: Decoder, others: Sequence[Decoder], times: Mapping[Decoder, list[float]]) -> tuple[str, str, str]:
    """Return the name and the time of the fastest of other decoders, and the ratio of our time to its time."""
    if not others:
        return NONE, NONE, NONE
    fastest = min(others, key=lambda decoder: statistics.median(times[decoder]))
    ratios = sorted(a / b for a, b in zip(times[own], times[fastest], strict=True))
    ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return fastest.name, _ms(times[fastest]), ratio


def _ms(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.2f}"


def _mean_difference(made: Sequence[NDArray[Any]], right: Sequence[Pixels]) -> float:
    return float(np.mean([np.abs(one - other).mean() for one, other in zip(made, right, strict=True)]))


def seconds(decoder: Decoder, kind: Kind, preprocessing: Preprocessing) -> float:
    """Return the CPU seconds per photo of a turn."""
    started, photos = time.process_time(), 0
    while time.process_time() - started < TURN_S or not photos:
        for file in kind.files:
            decoder.pixels(file, preprocessing)
        photos += len(kind.files)
    return (time.process_time() - started) / photos


def _name(size: str, form: str) -> str:
    return f"{size} {'HEIC' if form == 'HEIF' else form}"


if __name__ == "__main__":
    main()
