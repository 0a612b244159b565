"""Command group `retrieval feedback`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from retrieval.errors import InvalidParameter, command, counted

from .lines import show_next
from .options import NEW_FILE

Folder = click.Path(path_type=Path)
CSV, PARQUET = ".csv", ".parquet"


@click.group()
def feedback() -> None:
    """Export verdicts on answers.

    \b
    Example:
      retrieval feedback export galleries/shop.feedback.jsonl --photos judged -o reviewed.csv
    """


@feedback.command("export")
@click.argument("files", type=Folder, nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--photos",
    required=True,
    type=Folder,
    help="Folder in which the server kept the photos of judged answers (`retrieval serve --feedback-photos`).",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=NEW_FILE,
    help="Table to write: a .csv that names the photos in their folder, or a .parquet that contains them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def export(files: Sequence[Path], photos: Path, output: Path, as_json: bool) -> None:
    """Write reviewed photos as a labelled table.

    FILE is a feedback file of `retrieval serve`, or several in the order in which they were written. Each photo whose
    answer was judged gets the item that is right, or an empty item id if it shows no item of the catalogue. The last
    verdict of each key on a photo counts. If these verdicts contradict each other, the photo is left out.

    `retrieval calibrate --queries` and `retrieval train --from` take the table as it is.

    \b
    Example:
      retrieval feedback export galleries/shop.feedback.jsonl --photos judged -o reviewed.csv
      retrieval calibrate bundles/shop galleries/shop --queries reviewed.csv --dry-run
      retrieval train reviewed.csv --from runs/shop -o runs/shop-2
    """
    from retrieval.catalogue.embedded import write_embedded
    from retrieval.catalogue.tables import write_catalogue
    from retrieval.feedback import labelled_photos, read_feedback

    if output.suffix.lower() not in (CSV, PARQUET):
        raise InvalidParameter("--output", f"end in {CSV} or {PARQUET}", str(output))
    if not photos.is_dir():
        raise InvalidParameter("--photos", "be a folder", str(photos), remedy="Serve with --feedback-photos FOLDER")
    labelled, left_out = labelled_photos([verdict for file in files for verdict in read_feedback(file)], photos)
    (write_embedded if output.suffix.lower() == PARQUET else write_catalogue)(labelled, output)
    items = [photo.item_id for photo in labelled if photo.item_id]
    counts = {"photos": len(labelled), "items": len(set(items)), "unknown": len(labelled) - len(items)}
    if as_json:
        click.echo(json.dumps({**counts, "left_out": dict(left_out)}, indent=2))
        return
    for why, count in left_out.items():
        click.echo(f"Left out: {counted(count, 'verdict')} {why}.")
    known = f"{counted(len(items), 'photo')} of {counted(counts['items'], 'known item', 'known items')}"
    unknown = f"{counted(counts['unknown'], 'photo')} of unknown items"
    click.echo(
        f"Wrote {output} with {counted(len(labelled), 'reviewed photo', 'reviewed photos')}: {known}, {unknown}."
    )
    show_next(command("calibrate", "BUNDLE", "GALLERY", "--queries", output, "--dry-run"))
