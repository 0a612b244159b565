"""Command `retrieval calibrate`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from retrieval.errors import command
from retrieval.files import write_file

from .lines import show_lines, show_next
from .options import BUNDLE, CATALOGUE, GALLERY, NEW_FILE, GroupedCommand, options_as

if TYPE_CHECKING:
    from index.location import AnyGallery
    from retrieval.catalogue.photos import Photo
    from retrieval.galleries.measured import GalleryMeasurement


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of `retrieval calibrate`."""

    target_fpir: float | None
    queries: Path | str | None
    certify: bool
    dry_run: bool
    as_json: bool
    report: Path | None

    def photos(self) -> list[Photo] | None:
        """Return the labelled photos of --queries, None without it."""
        from retrieval.catalogue.photos import QUERIES
        from retrieval.catalogue.read import read_catalogue

        return None if self.queries is None else read_catalogue(self.queries, labels=QUERIES)


OPTIONS = (
    click.option(
        "--target-fpir",
        type=float,
        help="Maximum share of searches for unknown items that return a match.  [default: the current target]",
    ),
    click.option(
        "--queries",
        type=CATALOGUE,
        help="Labelled photos taken by users: a folder or a table with item ids of the gallery. A photo that shows no "
        "item of the gallery has an empty item id in the table.",
    ),
    click.option(
        "--certify",
        is_flag=True,
        help="Certify the target with 95 % confidence, or fail. A certified threshold finds far fewer items: the "
        "command prints how many it finds.",
    ),
    click.option("--dry-run", is_flag=True, help="Print what would change, and leave the gallery as it is."),
    click.option(
        "--report",
        type=NEW_FILE,
        help="HTML file to write the report on the new threshold to.",
    ),
    click.option(
        "--json", "as_json", is_flag=True, help="Print the old and the new operating point and the changes as JSON."
    ),
)
calibration_options = options_as("options", CalibrationOptions, OPTIONS)


class CalibrateCommand(GroupedCommand):
    """`retrieval calibrate`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Target": ["target_fpir", "certify"],
        "Photos": ["queries"],
        "Output": ["dry_run", "report", "as_json"],
    }


@click.command(cls=CalibrateCommand)
@click.argument("bundle", type=BUNDLE)
@click.argument("gallery", type=GALLERY)
@calibration_options
def calibrate(bundle: Path, gallery: Path | str, options: CalibrationOptions) -> None:
    """Set the threshold of a gallery, from searches for items that are not in it.

    Each gallery item that the model was not trained on is left out in turn and searched for. The distance to the
    nearest other item shows how close an unknown item comes. Users' photos may differ from catalogue photos: pass 50
    of them with their item ids as --queries to measure both error rates on them. The gallery keeps these queries.
    Photos of unknown items have an empty item id. Each counts like an item of the gallery among the searches that set
    the threshold, so give one photo of each unknown item, or give its photos one `group`. Label photos again after you
    add such an item to the gallery.

    \b
    Example:
      retrieval calibrate bundles/shop galleries/shop --queries labelled.csv --target-fpir 0.02 --dry-run
      retrieval calibrate bundles/shop galleries/shop --report report.html
    """
    from index.location import open_gallery
    from retrieval.bundle.bundle import Bundle, require_match
    from retrieval.galleries.measured import measure_gallery
    from retrieval.measuring.sentences import certificate_cost

    opened, photos = Bundle.open(bundle), options.photos()
    with open_gallery(gallery, read_only=options.dry_run) as place:
        require_match(opened, place)
        measurement = measure_gallery(
            opened,
            place,
            rule="set",
            target_fpir=options.target_fpir,
            photos=photos,
            certify=options.certify,
        )
        if measurement.measured.estimated is not None and not options.as_json:
            click.echo(certificate_cost(measurement.after, measurement.measured.estimated))
        if not options.dry_run:
            measurement.set_in(place)  # before anything is printed, since `| head` ends the command
        show_measurement(measurement, as_json=options.as_json)
        if options.report is not None:
            write_report(options.report, place, measurement)
    if not options.as_json:
        show_written(bundle, gallery, options)


def show_written(bundle: Path, gallery: Path | str, options: CalibrationOptions) -> None:
    """Print what was written, and the command that comes next."""
    click.echo(f"Nothing was written to {gallery}." if options.dry_run else f"Wrote the threshold to {gallery}.")
    if options.report is not None:
        click.echo(f"Wrote {options.report}.")
    if not options.dry_run:
        show_next(command("serve", bundle, gallery))


def write_report(path: Path, gallery: AnyGallery, measurement: GalleryMeasurement) -> None:
    """Write the report of a gallery with its new operating point."""
    from retrieval.reports.gallery_report import GalleryReport, render_gallery_report

    write_file(path, render_gallery_report(GalleryReport.of_measurement(gallery, measurement)))


def show_measurement(measurement: GalleryMeasurement, *, as_json: bool) -> None:
    """Print what would change, and what to expect of the new threshold."""
    from retrieval.measuring.sentences import describe

    change = measurement.change
    if as_json:
        click.echo(json.dumps(change.to_dict(measurement.refused), indent=2))
        return
    show_lines("photo refused", [f"{photo_id}: {reason}" for photo_id, reason in measurement.refused])
    for line in [*change.lines(), *describe(measurement.after)]:
        click.echo(line)
    for kind, _, changed in change.answers():
        show_lines(f"answer to {kind} changes", changed, many=f"answers to {kind} change")
