"""Command `retrieval calibrate`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from index.shell import command
from retrieval.errors import InvalidParameter
from retrieval.files import check_place, write_file

from .feedback_options import feedback_options, show_tally
from .lines import show_lines
from .next_step import show_next
from .options import CataloguePlace, Place
from .regions import RegionOptions, calibrate_regions, region_options
from .settings_options import GroupedCommand

if TYPE_CHECKING:
    from index.protocol import GalleryProtocol
    from retrieval.threshold.gallery_calibration import Proposal

Folder = click.Path(path_type=Path)


def writable(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Return the path of an option; raise OSError if it cannot be written."""
    if path is not None:
        check_place(path)
    return path


class CalibrateCommand(GroupedCommand):
    """`retrieval calibrate`, with its options in groups."""

    option_groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Target": ["target_fpir", "certify"],
        "Photos": ["queries", "feedback", "trust_key", "photos_per_query"],
        "Several items in one photo": ["regions", "scale", "max_windows", "detector", "min_score"],
        "Output": ["dry_run", "report", "as_json"],
    }


@click.command(cls=CalibrateCommand)
@click.argument("bundle", type=Folder)
@click.argument("gallery", type=Place())
@click.option(
    "--target-fpir",
    type=float,
    help="Maximum share of searches for unknown items that return a match.  [default: the current target]",
)
@click.option(
    "--queries",
    type=CataloguePlace(),
    help="Labelled photos taken by users: a folder or a table with item ids of the gallery. A photo that shows no item "
    "of the gallery has an empty item id in the table.",
)
@feedback_options
@click.option(
    "--certify",
    is_flag=True,
    help="Certify the target even with fewer than 300 items, or fail; the threshold is then much stricter.",
)
@click.option(
    "--photos-per-query",
    type=int,
    multiple=True,
    help="Also set the threshold for queries of this many photos of the same item. Can be repeated; 1 removes these "
    "thresholds.  [default: the numbers that have a threshold]",
)
@region_options(boxes=False)
@click.option("--dry-run", is_flag=True, help="Print what would change, and leave the gallery as it is.")
@click.option(
    "--report",
    type=Folder,
    callback=writable,
    help="HTML file to write the report on the new threshold to.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the old and the new operating point and the changes as JSON."
)
def calibrate(  # noqa: PLR0913, PLR0917, one an option
    bundle: Path,
    gallery: Path | str,
    target_fpir: float | None,
    queries: Path | str | None,
    feedback: Path | None,
    trust_key: Sequence[str],
    certify: bool,
    photos_per_query: Sequence[int],
    regions: RegionOptions,
    dry_run: bool,
    report: Path | None,
    as_json: bool,
) -> None:
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
    if regions.regions is not None:
        if feedback is not None or photos_per_query or report is not None:
            raise InvalidParameter(
                "--regions", "be used without --feedback, --photos-per-query and --report", regions.regions
            )
        calibrate_regions(
            bundle,
            gallery,
            regions,
            queries=queries,
            target_fpir=target_fpir,
            certify=certify,
            dry_run=dry_run,
            as_json=as_json,
        )
        return
    calibrate_photos(
        bundle,
        gallery,
        target_fpir=target_fpir,
        queries=queries,
        feedback=feedback,
        trust_key=trust_key,
        certify=certify,
        photos_per_query=photos_per_query,
        dry_run=dry_run,
        report=report,
        as_json=as_json,
    )


def calibrate_photos(  # noqa: PLR0913, one an option
    bundle: Path,
    gallery: Path | str,
    *,
    target_fpir: float | None,
    queries: Path | str | None,
    feedback: Path | None,
    trust_key: Sequence[str],
    certify: bool,
    photos_per_query: Sequence[int],
    dry_run: bool,
    report: Path | None,
    as_json: bool,
) -> None:
    """Set the threshold of whole photos, and of queries of several photos, and print what to expect of it."""
    from index.location import open_gallery
    from retrieval.bundle.bundle import Bundle
    from retrieval.catalogue.photos import QUERIES
    from retrieval.catalogue.read import read_catalogue
    from retrieval.compatibility import require_match
    from retrieval.threshold.feedback import read_feedback
    from retrieval.threshold.gallery_calibration import propose
    from retrieval.threshold.verdicts import weigh

    opened = Bundle.open(bundle)
    photos = None if queries is None else read_catalogue(queries, labels=QUERIES)
    verdicts = () if feedback is None else read_feedback(feedback)
    if feedback is not None and not as_json:
        show_tally(len(verdicts), weigh(opened, verdicts, trusted=trust_key))
    with open_gallery(gallery, read_only=dry_run) as place:
        require_match(opened, place)
        if not dry_run:
            place.lock()  # nobody changes the gallery while it is measured
        proposal = propose(
            opened,
            place,
            target_fpir=target_fpir,
            photos=photos,
            feedback=verdicts,
            trusted=trust_key,
            certify=certify,
            photos_per_query=photos_per_query or None,
        )
        show_proposal(proposal, as_json=as_json)
        if report is not None:
            write_report(report, place, proposal)
        if not dry_run:
            proposal.write(place)
    if not as_json:
        show_written(bundle, gallery, report, dry_run=dry_run)


def show_written(bundle: Path, gallery: Path | str, report: Path | None, *, dry_run: bool) -> None:
    """Print what was written, and the command that comes next."""
    click.echo(f"Nothing was written to {gallery}." if dry_run else f"Wrote the threshold to {gallery}.")
    if report is not None:
        click.echo(f"Wrote {report}.")
    if not dry_run:
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
