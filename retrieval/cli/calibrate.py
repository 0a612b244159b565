"""Command `retrieval calibrate`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from index.shell import command
from retrieval.files import write_file

from .calibration_options import CalibrationOptions, calibration_options
from .lines import show_lines, show_next
from .options import GroupedCommand, Place
from .regions import RegionOptions, calibrate_regions, region_options

if TYPE_CHECKING:
    from index.protocol import GalleryProtocol
    from retrieval.threshold.gallery_calibration import Proposal
    from retrieval.threshold.verdicts import Tally


class CalibrateCommand(GroupedCommand):
    """`retrieval calibrate`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Target": ["target_fpir", "certify"],
        "Photos": ["queries", "feedback", "trust_key", "photos_per_query"],
        "Several items in one photo": ["regions", "scale", "max_windows", "detector", "min_score"],
        "Output": ["dry_run", "report", "as_json"],
    }


@click.command(cls=CalibrateCommand)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("gallery", type=Place())
@calibration_options
@region_options(boxes=False)
def calibrate(bundle: Path, gallery: Path | str, options: CalibrationOptions, regions: RegionOptions) -> None:
    """Set the threshold of a gallery, from searches for items that are not in it.

    Each gallery item that the model was not trained on is left out in turn and searched for. The distance to the
    nearest other item shows how close an unknown item comes. Users' photos may differ from catalogue photos: pass 50
    of them with their item ids as --queries to measure both error rates on them. The gallery keeps these queries.
    Photos of unknown items have an empty item id; with 20 of them, the threshold keeps the target on them too.

    With --regions, only the threshold of searches for several items in one photo is set, from --queries with photos
    like those that users send. Each line of the table names one item of a photo; all items of a photo are left out of
    its search. The target is then the share of photos of unknown items that return a match.

    \b
    Example:
      retrieval calibrate bundles/shop galleries/shop --queries labelled.csv --target-fpir 0.02 --dry-run
      retrieval calibrate bundles/shop galleries/shop --photos-per-query 2 --photos-per-query 3 --report report.html
      retrieval calibrate bundles/shop galleries/shop --regions auto --queries shelves.csv
    """
    if regions.regions is None:
        calibrate_photos(bundle, gallery, options)
    else:
        calibrate_regions(bundle, gallery, regions, options)


def calibrate_photos(bundle: Path, gallery: Path | str, options: CalibrationOptions) -> None:
    """Set the threshold of whole photos, and of queries of several photos, and print what to expect of it."""
    from index.location import open_gallery
    from retrieval.bundle.bundle import Bundle
    from retrieval.compatibility import require_match
    from retrieval.threshold.feedback import read_feedback
    from retrieval.threshold.gallery_calibration import propose
    from retrieval.threshold.verdicts import weigh

    opened, photos = Bundle.open(bundle), options.photos()
    verdicts = () if options.feedback is None else read_feedback(options.feedback)
    if options.feedback is not None and not options.as_json:
        show_tally(len(verdicts), weigh(opened, verdicts, trusted=options.trust_key))
    with open_gallery(gallery, read_only=options.dry_run) as place:
        require_match(opened, place)
        if not options.dry_run:
            place.lock()  # nobody changes the gallery while it is measured
        proposal = propose(
            opened,
            place,
            target_fpir=options.target_fpir,
            photos=photos,
            feedback=verdicts,
            trusted=options.trust_key,
            certify=options.certify,
            photos_per_query=options.photos_per_query or None,
        )
        show_proposal(proposal, as_json=options.as_json)
        if options.report is not None:
            write_report(options.report, place, proposal)
        if not options.dry_run:
            proposal.write(place)
    if not options.as_json:
        show_written(bundle, gallery, options)


def show_tally(verdicts: int, tally: Tally) -> None:
    """Print which verdicts count."""
    click.echo(f"{verdicts} verdicts, {len(tally.counted)} of them counted:")
    for line in tally.lines():
        click.echo(f"  {line}")


def show_written(bundle: Path, gallery: Path | str, options: CalibrationOptions) -> None:
    """Print what was written, and the command that comes next."""
    click.echo(f"Nothing was written to {gallery}." if options.dry_run else f"Wrote the threshold to {gallery}.")
    if options.report is not None:
        click.echo(f"Wrote {options.report}.")
    if not options.dry_run:
        show_next(command("serve", bundle, gallery))


def write_report(path: Path, gallery: GalleryProtocol, proposal: Proposal) -> None:
    """Write the report of a gallery with its proposed operating point."""
    from retrieval.threshold.gallery_report.data import GalleryReport
    from retrieval.threshold.gallery_report.page import render_gallery_report

    write_file(path, render_gallery_report(GalleryReport.of_proposal(gallery, proposal.anchored)))


def show_proposal(proposal: Proposal, *, as_json: bool) -> None:
    """Print what would change, and what to expect of the new threshold."""
    from retrieval.threshold.gallery_anchor import describe

    if as_json:
        click.echo(json.dumps(proposal.to_dict(), indent=2))
        return
    show_lines("refused", [f"{photo_id}: {reason}" for photo_id, reason in proposal.refused])
    for line in [*proposal.changes(), *describe(proposal.after), *proposal.of_several_photos()]:
        click.echo(line)
    show_lines("stored searches change", proposal.answers.lines())
