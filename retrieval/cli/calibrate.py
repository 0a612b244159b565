"""Command `retrieval calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from index.shell import command

from .feedback_options import feedback_options, show_tally

Folder = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=Folder)
@click.argument("gallery", type=Folder)
@click.option(
    "--target-fpir",
    type=float,
    help="Maximum share of searches for unknown items that return a match.  [default: the current target]",
)
@click.option(
    "--queries",
    type=Folder,
    help="Labelled photos taken by users: a folder or a table with item ids of the gallery.",
)
@feedback_options
@click.option(
    "--certify",
    is_flag=True,
    help="Certify the target even with fewer than 300 items, or fail; the threshold is then much stricter.",
)
@click.option("--dry-run", is_flag=True, help="Print what would change without writing anything.")
def calibrate(
    bundle: Path,
    gallery: Path,
    target_fpir: float | None,
    queries: Path | None,
    feedback: Path | None,
    trust_key: Sequence[str],
    certify: bool,
    dry_run: bool,
) -> None:
    """Set the threshold of a gallery, from searches for items that are not in it.

    Searches for gallery items that the model was not trained on, leaving each item out in turn. The distance to the
    nearest other item shows how close an unknown item comes. Users' photos may differ from catalogue photos: pass 50
    of them with their item ids as --queries to measure both error rates on them. The gallery keeps these queries.

    \b
    Example:
      retrieval calibrate bundles/shop galleries/shop --queries labelled.csv --dry-run
      retrieval calibrate bundles/shop galleries/shop --target-fpir 0.02
    """
    from index.gallery import Gallery
    from retrieval.bundle.bundle import Bundle
    from retrieval.catalogue.read import read_catalogue
    from retrieval.errors import CalibrationError
    from retrieval.retriever import require_match
    from retrieval.threshold.feedback import read_feedback
    from retrieval.threshold.gallery_anchor import describe
    from retrieval.threshold.gallery_calibration import propose

    opened = Bundle.open(bundle)
    photos = None if queries is None else read_catalogue(queries)
    verdicts = () if feedback is None else read_feedback(feedback)
    with Gallery.open(gallery, read_only=dry_run) as place:
        require_match(opened, place)
        if not dry_run:
            place.lock()  # nobody changes the gallery while it is measured
        proposal = propose(
            opened,
            place,
            target_fpir=target_fpir,
            photos=photos,
            feedback=verdicts,
            trusted=tuple(trust_key),
            certify=certify,
        )
        if proposal.tally is not None:
            show_tally(len(verdicts), proposal.tally)
        for photo_id, reason in proposal.refused:
            click.echo(f"refused {photo_id}: {reason}")
        if proposal.anchored.point is None:
            raise CalibrationError(proposal.anchored.why_not)
        for line in [*proposal.changes(), *describe(proposal.anchored.point)]:
            click.echo(line)
        if dry_run:
            click.echo("Nothing was written.")
            return
        proposal.write(place)
    click.echo(f"Wrote the threshold to {gallery}.")
    click.echo(f"Next: {command('serve', bundle, gallery)}")
