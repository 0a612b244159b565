"""Command `retrieval calibrate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from index.shell import command

from .feedback_options import feedback_options, show_tally
from .lines import show_lines
from .next_step import show_next
from .options import Place

if TYPE_CHECKING:
    from retrieval.threshold.gallery_calibration import Proposal

Folder = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=Folder)
@click.argument("gallery", type=Place())
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
@click.option(
    "--photos-per-query",
    type=int,
    multiple=True,
    help="Also set the threshold of queries of this many photos of one thing; repeat it for several numbers, 1 keeps "
    "none.  [default: the numbers that have a threshold]",
)
@click.option("--dry-run", is_flag=True, help="Print what would change without writing anything.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the old and the new operating point and the changes as JSON."
)
def calibrate(
    bundle: Path,
    gallery: Path | str,
    target_fpir: float | None,
    queries: Path | None,
    feedback: Path | None,
    trust_key: Sequence[str],
    certify: bool,
    photos_per_query: Sequence[int],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Set the threshold of a gallery, from searches for items that are not in it.

    Searches for gallery items that the model was not trained on, leaving each item out in turn. The distance to the
    nearest other item shows how close an unknown item comes. Users' photos may differ from catalogue photos: pass 50
    of them with their item ids as --queries to measure both error rates on them. The gallery keeps these queries.

    \b
    Example:
      retrieval calibrate bundles/shop galleries/shop --queries labelled.csv --target-fpir 0.02 --dry-run
      retrieval calibrate bundles/shop galleries/shop --photos-per-query 2 --photos-per-query 3
    """
    from index.location import open_gallery
    from retrieval.bundle.bundle import Bundle
    from retrieval.catalogue.read import read_catalogue
    from retrieval.retriever import require_match
    from retrieval.threshold.feedback import read_feedback
    from retrieval.threshold.gallery_calibration import propose
    from retrieval.threshold.verdicts import weigh

    opened = Bundle.open(bundle)
    photos = None if queries is None else read_catalogue(queries)
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
            trusted=tuple(trust_key),
            certify=certify,
            photos_per_query=photos_per_query or None,
        )
        if as_json:
            click.echo(json.dumps(proposal.to_dict(), indent=2))
        else:
            show_proposal(proposal)
        if not dry_run:
            proposal.write(place)
    if not as_json:
        click.echo("Nothing was written." if dry_run else f"Wrote the threshold to {gallery}.")
    if not as_json and not dry_run:
        show_next(command("serve", bundle, gallery))


def show_proposal(proposal: Proposal) -> None:
    """Print what would change, and what to expect of the new threshold."""
    from retrieval.threshold.gallery_anchor import describe

    show_lines("refused", [f"{photo_id}: {reason}" for photo_id, reason in proposal.refused])
    for line in [*proposal.changes(), *describe(proposal.after), *proposal.of_several_photos()]:
        click.echo(line)
    show_lines("stored searches change", proposal.answers.lines())
