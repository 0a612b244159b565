"""Command `retrieval index`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.ann.kinds import KINDS
from index.database import POINT
from index.location import exists, open_gallery
from index.search.filters import TEXT
from retrieval.catalogue.check import describe_catalogue
from retrieval.catalogue.folders import FolderRules
from retrieval.catalogue.kinds import COLUMN_KINDS
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import command, counted
from retrieval.files import write_file
from retrieval.indexing.plan import SyncPlan, SyncSettings

from .lines import describe_index, describe_rebuild, runs_alone, show_lines, show_next, show_text_cells
from .options import BUNDLE, CATALOGUE, FOLDER_OPTIONS, MEMORY, NEW_FILE, NEW_GALLERY, options_as

if TYPE_CHECKING:
    from index.location import AnyGallery
    from retrieval.bundle.bundle import Bundle
    from retrieval.indexing.pipeline import IndexReport


class ColumnKind(click.ParamType[tuple[str, str]]):
    """A column and its kind."""

    name = "NAME=KIND"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Convert to name and kind."""
        if isinstance(value, tuple):
            return value
        name, _, kind = str(value).rpartition("=")
        if not name or kind not in COLUMN_KINDS:
            self.fail(f"{value!r} is not NAME=KIND, with a kind of {', '.join(COLUMN_KINDS)}", param, ctx)
        return name, kind


SYNC = (
    click.option("--prune", is_flag=True, help="Remove the gallery's photos that are not in the catalogue."),
    click.option(
        "--prune-at-most",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        default=0.5,
        show_default=True,
        help="Refuse the run if --prune would remove a larger share of the gallery's photos.",
    ),
    click.option(
        "--checksum",
        is_flag=True,
        help="Read every photo, even if the size and time of its file are unchanged.",
    ),
    click.option(
        "--windows",
        is_flag=True,
        help="Embed parts of up to 300 photos as well, so that searches with parts of a photo (windows) can decide.",
    ),
    click.option(
        "--names",
        metavar="COLUMN",
        help="Column with the names of items: embed them as well, so that searches by words (search --text) can "
        "decide. The bundle needs a text tower.",
    ),
    click.option(
        "--column",
        "columns",
        multiple=True,
        type=ColumnKind(),
        callback=lambda _context, _parameter, pairs: dict(pairs),
        help="Kind of a metadata column: text, number or boolean. Texts in the gallery are converted. Can be repeated.",
    ),
)


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.argument("photos", type=CATALOGUE)
@click.option(
    "-o",
    "--output",
    required=True,
    type=NEW_GALLERY,
    help="Gallery to add to or create: a directory, or the address of a Milvus collection.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=os.cpu_count(),
    show_default="all cores",
    help="Number of threads that embed.",
)
@click.option(
    "--kind",
    type=click.Choice(["auto", *KINDS]),
    help="Kind of index (local galleries).  [default: the last choice, at first auto]",
)
@click.option(
    "--max-memory", type=MEMORY, help="Memory limit of the index and its rebuild, such as 2GiB (local galleries)."
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Embed on this machine or on a Ray cluster.",
)
@click.option("--report", type=NEW_FILE, help="JSON file to write the refused photos and the reasons to.")
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@options_as("folders", FolderRules, FOLDER_OPTIONS)
@options_as("sync", SyncSettings, SYNC)
def index(  # noqa: PLR0913, PLR0917, one an option
    bundle: Path,
    photos: Path | str,
    output: Path | str,
    threads: int,
    kind: str | None,
    max_memory: int | None,
    engine: str,
    report: Path | None,
    dry_run: bool,
    folders: FolderRules,
    sync: SyncSettings,
) -> None:
    """Synchronize a gallery with a folder, a CSV, parquet or JSON-lines file, or tar shards of photos.

    New photos, and those whose file or bounding box changed, are embedded. A changed item or metadata is only written.
    Photos of the gallery that the catalogue does not have are reported, and removed with --prune, unless they are more
    than half of the gallery (--prune-at-most) or none of the catalogue's photos can be used. An interrupted run can be
    continued. Photos that cannot be used are reported and do not stop the run.

    Numbers and booleans of a CSV are recognized from the whole column, or declared with --column.

    \b
    Example:
      retrieval index bundles/shop photos.csv -o galleries/shop --dry-run
      retrieval index bundles/shop photos.csv -o galleries/shop --column price=number
    """
    from retrieval.bundle.bundle import Bundle
    from retrieval.indexing.pipeline import index_catalogue, plan_catalogue
    from retrieval.indexing.plan import check_prune

    opened = Bundle.open(bundle)
    known = known_columns(output)
    rows = read_catalogue(photos, columns=sync.columns, known=known, folders=folders)
    click.echo(f"{describe_catalogue(photos, rows)}.")
    show_text_cells(rows, {*sync.columns, *(name for name, kind in known.items() if kind != TEXT)}, output)
    if dry_run:
        plan = plan_catalogue(opened, rows, output, sync=sync)
        show_plan(plan, report)
        check_prune(plan, sync)
        return
    done = index_catalogue(
        opened,
        rows,
        output,
        threads=threads,
        kind=kind,
        max_memory=max_memory,
        engine=engine,
        sync=sync,
    )
    show_outcome(done, output, report)
    with open_gallery(output, read_only=True) as gallery:
        click.echo(describe_index(gallery) if done.rebuilt is None else describe_rebuild(done.rebuilt))
        show_shared(gallery)
        show_expectations(done, opened, gallery)
    show_next(command("serve", bundle, output))


def show_outcome(done: IndexReport, gallery: Path | str, report: Path | None) -> None:
    """Print what a run did, and write it to a JSON file if one is given; exit if every photo was refused."""
    show_lines("photo refused", [f"{photo_id}: {reason}" for photo_id, reason in done.refused])
    show_lines("photo damaged, not refused (blocks of the JPEG are lost or noisy: replace it)", done.damaged)
    show_lines("photo of the gallery, not in the catalogue (--prune removes such photos)", done.gone)
    if report is not None:
        write_file(report, json.dumps(done.to_dict(), indent=2) + "\n")
    if done.refused and not (done.added or done.updated or done.skipped):
        click.echo("Nothing was added: every photo was refused.", err=True)
        sys.exit(1)
    click.echo(f"Wrote {gallery}: {_counts(done)}.")


def show_shared(gallery: AnyGallery) -> None:
    """Print the photos that several items share, with the items."""
    from retrieval.galleries.kept import read_draws
    from retrieval.inspect.duplicates import shared_photos
    from retrieval.measuring.draws import OWN

    drawn = read_draws(gallery)
    own = None if drawn is None else drawn.sources.get(OWN)
    pairs = () if own is None else zip(own.ids.tolist(), own.duplicates.tolist(), strict=True)
    lines = [f"{', '.join(items)}: {photo_id}" for photo_id, items in shared_photos(gallery, pairs)]
    show_lines("photo that several items share; a search that finds it asks which item is meant", lines)


def _counts(done: IndexReport) -> str:
    """Return how many photos were added, replaced and so on, leaving out zeros."""
    more = (
        (done.replaced, "of them replaced"),
        (done.updated, "updated"),
        (done.removed, "removed"),
        (done.skipped, "already there"),
        (len(done.refused), "refused"),
    )
    told = "".join(f", {count} {what}" for count, what in more if count)
    speed = f" in {done.seconds:.0f} s" if done.added else ""
    return f"{counted(done.added, 'photo')} added{speed}{told}"


def show_expectations(done: IndexReport, bundle: Bundle, gallery: AnyGallery) -> None:
    """Print what to expect of the threshold in the gallery as it is now, with a warning if it breaks its promise."""
    from retrieval.galleries.kept import Kept
    from retrieval.galleries.points import served_point
    from retrieval.measuring.sentences import describe, describe_names, describe_rate, threshold_change, warning_of

    served = served_point(gallery.kept(POINT), bundle, gallery)
    if done.before is not None:
        click.echo(threshold_change(done.before, served))
    if done.point is not None:
        known = [] if done.rates is None else [describe_rate(done.rates, done.point)]
        told = describe(done.point) if runs_alone() else []  # quickstart says it in a box
        for line in told if done.sets_threshold else known:
            click.echo(line)
    elif not served.decides:
        click.echo(f"This gallery has no threshold, so searches only rank items: {done.unanchored}.")
    elif done.unanchored:
        click.echo(f"This gallery uses the bundle's threshold: {done.unanchored}.")
    if bundle.text_key and gallery.kept(Kept.NAMES) is not None:
        click.echo(describe_names(done.rates))
    if warning := warning_of(served, done.rates, items=gallery.items, bundle=bundle.path, gallery=gallery.path):
        click.echo(f"Warning: {warning}.")


def known_columns(gallery: Path | str) -> dict[str, str]:
    """Return the kinds of a gallery's columns, none if it does not exist yet."""
    if not exists(gallery):
        return {}
    with open_gallery(gallery, read_only=True) as opened:
        return opened.columns()


def show_plan(plan: SyncPlan, report: Path | None) -> None:
    """Print a plan, and write it to a JSON file if one is given."""
    for title, lines in plan.sections():
        show_lines(title, lines)
    click.echo(f"{counted(plan.unchanged, 'photo is', 'photos are')} unchanged. Nothing was written.")
    if report is not None:
        write_file(report, json.dumps(plan.to_dict(), indent=2) + "\n")
