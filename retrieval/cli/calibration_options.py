"""Options of `retrieval calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.errors import InvalidParameter
from retrieval.files import check_place

from .options import CataloguePlace, options_as

if TYPE_CHECKING:
    from retrieval.catalogue.photos import Photo

Folder = click.Path(path_type=Path)


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of `retrieval calibrate`, except those of the regions of a photo."""

    target_fpir: float | None
    queries: Path | str | None
    certify: bool
    dry_run: bool
    as_json: bool
    feedback: Path | None  # these four are for whole photos only
    trust_key: tuple[str, ...]
    photos_per_query: tuple[int, ...]
    report: Path | None

    def photos(self) -> list[Photo] | None:
        """Return the labelled photos of --queries, None without it."""
        from retrieval.catalogue.photos import QUERIES
        from retrieval.catalogue.read import read_catalogue

        return None if self.queries is None else read_catalogue(self.queries, labels=QUERIES)

    def check_regions(self, regions: str | None) -> None:
        """Raise InvalidParameter for options that cannot be combined with --regions."""
        if self.feedback is not None or self.photos_per_query or self.report is not None:
            raise InvalidParameter("--regions", "be used without --feedback, --photos-per-query and --report", regions)


def writable(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Return the path of an option; raise OSError if it cannot be written."""
    if path is not None:
        check_place(path)
    return path


OPTIONS = (
    click.option(
        "--target-fpir",
        type=float,
        help="Maximum share of searches for unknown items that return a match.  [default: the current target]",
    ),
    click.option(
        "--queries",
        type=CataloguePlace(),
        help="Labelled photos taken by users: a folder or a table with item ids of the gallery. A photo that shows no "
        "item of the gallery has an empty item id in the table.",
    ),
    click.option("--feedback", type=Folder, help="File of verdicts on answers, which can tighten the threshold."),
    click.option(
        "--trust-key",
        multiple=True,
        help="API key whose verdicts may move the threshold without other keys; '' for a server without keys.",
    ),
    click.option(
        "--certify",
        is_flag=True,
        help="Certify the target even with fewer than 300 items, or fail; the threshold is then much stricter.",
    ),
    click.option(
        "--photos-per-query",
        type=int,
        multiple=True,
        help="Also set the threshold for queries of this many photos of the same item. Can be repeated; 1 removes "
        "these thresholds.  [default: the numbers that have a threshold]",
    ),
    click.option("--dry-run", is_flag=True, help="Print what would change, and leave the gallery as it is."),
    click.option(
        "--report",
        type=Folder,
        callback=writable,
        help="HTML file to write the report on the new threshold to.",
    ),
    click.option(
        "--json", "as_json", is_flag=True, help="Print the old and the new operating point and the changes as JSON."
    ),
)
calibration_options = options_as("options", CalibrationOptions, OPTIONS)
