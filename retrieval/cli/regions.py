"""Options and output of `retrieval search` and `retrieval calibrate` for the regions of a photo."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.bundle.operating_point import UNANCHORED
from retrieval.errors import InvalidParameter
from retrieval.result import RANKED, p_value_words

from .options import Command, options_as

if TYPE_CHECKING:
    from retrieval.regions.boxes import BBox
    from retrieval.regions.detector import Detector
    from retrieval.regions.policy import RegionPolicy
    from retrieval.regions.result import RegionMatch, RegionsResult
    from retrieval.retriever import Retriever


Folder = click.Path(path_type=Path)
AUTO, DETECTOR = NAMES = "auto", "detector"


@dataclass(frozen=True)
class RegionOptions:
    """Options of the regions of a photo. Raises InvalidParameter if they cannot be combined."""

    regions: str | None = None
    scale: tuple[float, ...] = ()
    max_windows: int | None = None
    detector: Path | None = None
    min_score: float | None = None
    bbox: tuple[str, ...] = ()

    @property
    def asked(self) -> bool:
        """Return whether any of the options was given."""
        return self != RegionOptions()

    def __post_init__(self) -> None:
        if self.bbox and self.regions:
            raise InvalidParameter("--bbox", "be left out with --regions", self.bbox[0])
        for name, wanted in (("scale", AUTO), ("detector", DETECTOR), ("min_score", DETECTOR)):
            if getattr(self, name) and self.regions != wanted:
                option = f"--{name.replace('_', '-')}"
                raise InvalidParameter(option, f"be used with --regions {wanted}", getattr(self, name))
        if self.max_windows is not None and self.regions is None:
            raise InvalidParameter("--max-windows", "be used with --regions", self.max_windows)
        if self.regions == DETECTOR and self.detector is None:
            raise InvalidParameter("--detector", "be given with --regions detector", None, remedy="Name an ONNX file")

    @property
    def several(self) -> bool:
        """Return whether several regions are searched, rather than the photo or one part of it."""
        return self.regions is not None or len(self.bbox) > 1

    def check_alone(self, *, combine: bool, explain: bool) -> None:
        """Raise InvalidParameter for options of the search that cannot be combined with these."""
        if combine and self.asked:
            raise InvalidParameter("--combine", "be left out with --regions and --bbox", combine)
        if explain and self.several:
            raise InvalidParameter("--explain", "be left out with --regions and several --bbox", explain)

    def bboxes(self) -> list[BBox]:
        """Return the bounding boxes that were given."""
        from retrieval.regions.boxes import parse_bbox

        return [parse_bbox(text) for text in self.bbox]

    def policy(self, detector: Detector | None) -> RegionPolicy:
        """Return the gallery's policy of this name, or the default one, changed by the options that were given."""
        from dataclasses import replace

        from retrieval.regions.detector import DetectorRegions
        from retrieval.regions.search import policy_of
        from retrieval.regions.windows import AutoRegions

        policy = policy_of(self.regions or AUTO, detector)
        if isinstance(policy, list):  # policy_of returns a list for bounding boxes only
            raise TypeError("not a policy")
        most = policy.most if self.max_windows is None else self.max_windows
        if isinstance(policy, AutoRegions):
            return replace(policy, most=most, scales=self.scale or policy.scales)
        if not isinstance(policy, DetectorRegions):
            return policy
        least = policy.least_score if self.min_score is None else self.min_score
        return replace(policy, most=most, least_score=least)


OPTIONS = (
    click.option(
        "--regions",
        type=click.Choice(NAMES),
        help="Divide a photo of several items into regions: overlapping windows at three scales (auto), or the boxes "
        "of an ONNX detector (detector).",
    ),
    click.option(
        "--scale",
        type=float,
        multiple=True,
        help="Side of the windows of --regions auto, as a share of the photo's shorter side. Can be repeated.  "
        "[default: those of the gallery's threshold, or 1, 0.6 and 0.4]",
    ),
    click.option(
        "--max-windows",
        type=int,
        help="Maximum number of regions per photo.  [default: that of the gallery's threshold, or 32; 16 with a "
        "detector]",
    ),
    click.option("--detector", type=Folder, help="ONNX file of the detector, for --regions detector."),
    click.option(
        "--min-score",
        type=float,
        help="Minimum score of a detector's box.  [default: that of the gallery's threshold, or 0.3]",
    ),
)
BBOX_OPTION = click.option(
    "--bbox",
    multiple=True,
    metavar="'LEFT UPPER RIGHT LOWER'",
    help="Search with a part of the photo, in pixels of the upright photo. Can be repeated: each box gets its own "
    "answer.",
)


def region_options(*, boxes: bool) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of regions to a command and passes them as `regions`."""
    return options_as("regions", RegionOptions, (*OPTIONS, BBOX_OPTION) if boxes else OPTIONS)


def search_parts(
    retriever: Retriever,
    image: Path | str,
    regions: RegionOptions,
    *,
    top_k: int,
    where: str | None,
    review: float,
) -> RegionsResult:
    """Search with the regions of a photo, or with several given boxes."""
    asked = regions.bboxes() or regions.policy(retriever.detector)
    return retriever.search_regions(image, asked, top_k=top_k, where=where, review=review)


def show_regions(result: RegionsResult, *, as_json: bool) -> None:
    """Print the items in a photo."""
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
        return
    for line in _lines(result):
        click.echo(line)
    if result.threshold_status == UNANCHORED and result.regions in NAMES:
        click.echo(
            "Note: the threshold was set for whole photos. The FPIR of searches by regions was not measured and is "
            "probably much higher."
        )


def _lines(result: RegionsResult) -> Iterator[str]:
    for rank, match in enumerate(result.matches or result.ranked, 1):
        yield f"{rank:3d}  {_line(match)}"
    per = f"{result.searched} regions"
    if result.matches:
        yield f"{len(result.matches)} items within the threshold {result.threshold:.4f}, in {per}."
    elif result.ranked:
        yield "These are the nearest items. There is no threshold to decide whether any of them is right."
    elif result.nearest is None:
        outcome = "nothing to rank" if result.decision == RANKED else "no match"
        yield f"{outcome}: {'no region was found in the photo' if not result.searched else 'nothing was compared'}"
    else:
        yield f"no match: the nearest of {per} is {_line(result.nearest)}; the threshold is {result.threshold:.4f}"
    if result.review:
        yield "For review, beyond the threshold:"
    yield from (f"     {_line(match)}" for match in result.review)
    if result.p_value_without_filter:
        yield "The p-values were measured without the filter."


def _line(match: RegionMatch) -> str:
    words = "" if match.p_value is None else f", {p_value_words(match.p_value)}"
    return f"{match.distance:.4f}  {match.item_id}  at {' '.join(f'{side:g}' for side in match.bbox)}{words}"
