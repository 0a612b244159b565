"""Command group `retrieval gallery`: inspect, change, export and import galleries."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from index.ann.kinds import KINDS
from index.checks import check_ids
from retrieval.errors import GalleryError, InvalidParameter, command, counted, photos_of_items
from retrieval.files import write_file

from .lines import describe_index, describe_rebuild
from .options import BUNDLE, GALLERY, MEMORY, NEW_FILE, NEW_GALLERY, NEW_PATH

if TYPE_CHECKING:
    from index.location import AnyGallery

FILE = click.Path(path_type=Path)
LOCAL_GALLERY = click.Path(exists=True, file_okay=False, path_type=Path)
HELD = "Another process holds the log of the database, which may keep removed photos until it ends or the next rebuild"


def describe_point(opened: AnyGallery) -> list[str]:
    """Return lines on the gallery's operating point and its FPIR in the newest version, none if it has no point."""
    from index.database import POINT
    from retrieval.galleries.points import as_served, read_points
    from retrieval.measuring.sentences import describe_rate, warning_of

    points = read_points(opened.kept(POINT))
    if not points:
        return []
    newest = points[-1]
    lines = [
        f"Threshold {newest.point.threshold:.4f}, set in this gallery with the bundle {newest.bundle_id[:12]} "
        f"for an FPIR of at most {newest.point.target_fpir:.1%} ({newest.point.status})."
    ]
    point, rates = as_served(newest.point, opened, newest.draws_id)
    if rates is not None:
        lines.append(describe_rate(rates, point))
    warning = warning_of(point, rates, items=opened.items, gallery=opened.path)
    return [*lines, *([f"Warning: {warning}."] if warning else [])]


@click.group()
def gallery() -> None:
    """Inspect, change, export and import galleries: directories, or addresses on Milvus.

    \b
    Example:
      retrieval gallery info galleries/shop
    """


def _open(path: Path | str, *, read_only: bool = False) -> AnyGallery:
    from index.location import open_gallery

    return open_gallery(path, read_only=read_only)


@gallery.command()
@click.argument("path", type=GALLERY)
def info(path: Path | str) -> None:
    """Show a gallery's size, its index, and the columns available to filters.

    \b
    Example:
      retrieval gallery info galleries/shop
    """
    with _open(path, read_only=True) as opened:
        click.echo(
            f"{photos_of_items(len(opened), opened.items)}, {opened.dim} numbers each, version {opened.version}."
        )
        click.echo(f"Created {opened.created} for the model {opened.embedding_id[:12]}.")
        click.echo(describe_index(opened))
        for line in describe_point(opened):
            click.echo(line)
        columns = ", ".join(f"{name} ({kind})" for name, kind in opened.columns().items())
        declare = command("gallery", "declare", path, "NAME:KIND")
        click.echo(f"Filters may use: {columns or f'nothing yet; {declare}'}.")


@gallery.command()
@click.argument("path", type=GALLERY)
@click.option(
    "--limit",
    type=click.IntRange(1, 2**31),
    default=20,
    show_default=True,
    help="Number of changes to list, newest first.",
)
def log(path: Path | str, limit: int) -> None:
    """List changes: version, time, user, action and number of photos.

    \b
    Example:
      retrieval gallery log galleries/shop --limit 5
    """
    with _open(path, read_only=True) as opened:
        for change in opened.changes(limit):
            photos = counted(change.photos, "photo")
            click.echo(f"{change.version:>8}  {change.time}  {change.actor}  {change.action}  {photos}")


@gallery.command()
@click.argument("path", type=GALLERY)
@click.argument("columns", nargs=-1, required=True, metavar="NAME:KIND...")
def declare(path: Path | str, columns: tuple[str, ...]) -> None:
    """Make metadata columns available to filters, as text (the default), number or boolean.

    Stored texts are converted, such as a column of prices that became text because of one bad cell.

    \b
    Example:
      retrieval gallery declare galleries/shop brand price:number
    """
    from index.search.filters import check_columns
    from retrieval.indexing.columns import convert_columns

    kinds = {name: kind or "text" for name, _, kind in (column.partition(":") for column in columns)}
    check_columns(kinds)
    with _open(path) as opened:
        convert_columns(opened, kinds)
        told = ", ".join(f"{name} ({kind})" for name, kind in opened.columns().items())
        click.echo(f"Filters may use: {told}.")


@gallery.command()
@click.argument("path", type=GALLERY)
@click.option("--photo", "photos", multiple=True, help="photo_id of a photo to remove. Can be repeated.")
@click.option(
    "--item", "items", multiple=True, help="item_id of an item to remove with all its photos. Can be repeated."
)
def remove(path: Path | str, photos: tuple[str, ...], items: tuple[str, ...]) -> None:
    """Remove photos or whole items. Ids that are not in the gallery are named, and the exit status is 1.

    \b
    Example:
      retrieval gallery remove galleries/shop --item sku-1234
    """
    if not photos and not items:
        raise InvalidParameter("--photo or --item", "name what to remove", None)
    check_ids("--photo or --item", [*photos, *items])
    with _open(path) as opened:
        unknown = [photo for photo in photos if opened.photo(photo) is None]
        unknown += [item for item in items if not opened.photos(item)]
        removed = opened.remove(photo_ids=photos, item_ids=items)
        rebuilds = command("gallery", "rebuild", path) if opened.at_hand else ""  # Milvus deletes vectors by itself
    click.echo(f"{counted(removed, 'photo')} removed.")
    if removed and rebuilds:
        click.echo(f"Their vectors, and what is kept of them, go with the next rebuild: {rebuilds}")
    if unknown:
        raise GalleryError(f"{path} has no photo or item {', '.join(unknown)}", remedy="Check the ids")


@gallery.command()
@click.argument("path", type=GALLERY)
@click.option(
    "--bundle", type=BUNDLE, help="Bundle whose calibration photos measure the recall of an approximate index, too."
)
@click.option("--kind", type=click.Choice(["auto", *KINDS]), help="Kind of index.  [default: the last choice]")
@click.option("--max-memory", type=MEMORY, help="Memory limit of the index and its rebuild, such as 2GiB.")
@click.option(
    "--min-recall",
    type=click.FloatRange(0, 1),
    default=0.99,
    show_default=True,
    help="Recall below which the index is refused.",
)
def rebuild(
    path: Path | str,
    bundle: Path | None,
    kind: str | None,
    max_memory: int | None,
    min_recall: float,
) -> None:
    """Rebuild the index and drop the vectors of removed photos. Searches continue meanwhile.

    \b
    Example:
      retrieval gallery rebuild galleries/shop --bundle bundles/shop --max-memory 2GiB
    """
    from index.gallery import Gallery
    from retrieval.bundle.bundle import Bundle
    from retrieval.galleries.erasure import forget
    from retrieval.galleries.kept import Kept
    from retrieval.galleries.measured import measure_gallery
    from retrieval.indexing.pipeline import recall_queries

    model = None if bundle is None else Bundle.open(bundle)
    with _open(path) as opened:
        if not isinstance(opened, Gallery):
            raise GalleryError(
                f"Milvus maintains the index of {path} itself, so there is nothing to rebuild",
                remedy="Choose its kind by the option --index of `retrieval index`",
            )
        queries = None if model is None else recall_queries(model)
        rebuilt = opened.rebuild(kind=kind, max_memory=max_memory, queries=queries, min_recall=min_recall)
        had_draws, held = opened.kept(Kept.DRAWS) is not None, forget(opened)
        if model is not None and had_draws and opened.kept(Kept.DRAWS) is None:
            measure_gallery(model, opened, rule="keep").write(opened)
    click.echo(f"{describe_rebuild(rebuilt)} Dropped {counted(rebuilt.dropped, 'vector of removed photos')}.")
    if held:
        click.echo(f"{HELD}: {', '.join(held)}.")


@gallery.command()
@click.argument("path", type=LOCAL_GALLERY)
@click.option("--item", "items", multiple=True, required=True, help="item_id of an item to erase. Can be repeated.")
@click.option("--report", type=NEW_FILE, help="JSON file for the files that were searched, and what is left.")
def erase(path: Path, items: tuple[str, ...], report: Path | None) -> None:
    """Erase items: remove their photos, rebuild the gallery, and search its files for what is left of them.

    What the gallery and the feedback beside it keep of the items goes, too. The report lists each file that was
    searched for the bytes of the thumbnails and vectors, and what this command cannot reach. The exit status is 1 if
    something was left.

    \b
    Example:
      retrieval gallery erase galleries/shop --item sku-1234 --report erased.json
    """
    from index.gallery import Gallery
    from retrieval.galleries.erasure import erase as erased

    with Gallery.open(path) as opened:
        unknown = [item for item in items if not opened.photos(item)]
        done = erased(opened, items)
    if report is not None:
        write_file(report, json.dumps(done.to_dict(), indent=2) + "\n")
    left = [each.file for each in done.searched if each.thumbnails or each.vectors]
    told = f"{len(left)} still hold something of them: {', '.join(left)}" if left else "nothing of them was left"
    searched = counted(len(done.searched), "file was", "files were")
    click.echo(f"{counted(done.photos, 'photo')} erased. {searched} searched: {told}.")
    for photo_id in done.copies:
        click.echo(f"The same photo stays in the gallery as {photo_id}.")
    if done.readers:
        click.echo(f"{HELD}: {', '.join(done.readers)}.")
    click.echo("This command cannot reach:")
    for place in done.beyond:
        click.echo(f"  {place}")
    if unknown:
        raise GalleryError(f"{path} has no item {', '.join(unknown)}", remedy="Check the ids")
    if not done.is_complete:
        sys.exit(1)


@gallery.command()
@click.argument("path", type=GALLERY)
def verify(path: Path | str) -> None:
    """Read the whole gallery and check its hashes and checksums.

    \b
    Example:
      retrieval gallery verify galleries/shop
    """
    with _open(path, read_only=True) as opened:
        problems = opened.verify()
        for problem in problems:
            click.echo(f"BAD  {problem}")
        if problems:
            click.echo("Restore the gallery from a copy, or index the photos again.")
            sys.exit(1)
        own = "; Milvus checks its own files" if opened.index()["kind"] not in KINDS else ""
        click.echo(f"{counted(len(opened), 'photo is', 'photos are')} intact{own}.")


@gallery.command()
@click.argument("path", type=GALLERY)
@click.argument("output", type=NEW_PATH)
def export(path: Path | str, output: Path) -> None:
    """Back a gallery up to a new folder, or write a .csv table.

    The folder holds one version of the gallery, verified, and is a gallery itself; the original can be searched and
    changed meanwhile. To restore it, use `retrieval gallery import`. A .csv file holds ids and metadata for
    spreadsheets and cannot be imported.

    \b
    Example:
      retrieval gallery export galleries/shop backups/shop-2026-11-21
      retrieval gallery export galleries/shop shop.csv
    """
    from index.database import POINT
    from index.upkeep.transfer import export_gallery
    from retrieval.galleries.kept import Kept

    with _open(path, read_only=True) as opened:
        click.echo(f"Wrote {output}: {counted(export_gallery(opened, output, (POINT, Kept.QUERIES)), 'photo')}.")


@gallery.command("import")
@click.argument("source", type=FILE)
@click.argument("path", type=NEW_GALLERY)
def import_(source: Path, path: Path | str) -> None:
    """Restore an exported gallery, or add its photos to a gallery of the same model.

    The source is verified. A new local gallery is the same as the exported one and answers alike; one on Milvus gets
    the photos, the thresholds and the labelled queries. An existing gallery keeps its own threshold. Files that
    version 0.2.0 exported (.parquet) can be imported, too, without their draws, windows and vectors of fold models.

    \b
    Example:
      retrieval gallery import backups/shop-2026-11-21 galleries/restored
    """
    from index.database import POINT
    from index.location import exists
    from index.upkeep.transfer import copy_gallery, open_backup
    from retrieval.galleries.kept import Kept
    from retrieval.galleries.points import read_points
    from retrieval.verification.features import PackedFeatures

    form, is_new = PackedFeatures(), not exists(path)
    with open_backup(source, beside=path if isinstance(path, Path) else None, feature_format=form) as backup:
        has_point = bool(read_points(backup.kept(POINT)))
        photos = copy_gallery(backup, path, (POINT, Kept.QUERIES), feature_format=form)
    with _open(path, read_only=True) as opened:
        points, has_draws = read_points(opened.kept(POINT)), opened.kept(Kept.DRAWS) is not None
    again = command("calibrate", "BUNDLE", path)
    own = f", and {path} keeps its own threshold" if points else ""
    brings = is_new and has_point
    click.echo(f"Wrote {path}: {counted(photos, 'photo')}{', with their threshold' if brings else own}.")
    if not points:
        click.echo(f"No threshold was imported; to set one: {again}")
    elif brings and not has_draws:
        click.echo(f"No draws were imported, so the FPIR and p-values are unknown until they are made: {again}")
    if source.is_file():
        index = command("index", "BUNDLE", "PHOTOS", "-o", path)
        click.echo(f"Windows and vectors of fold models were not imported. If the gallery had any: {index}")


@gallery.command("report")
@click.argument("bundle", type=BUNDLE)
@click.argument("path", type=GALLERY)
@click.option("-o", "--output", required=True, type=NEW_FILE, help="HTML file to write.")
def report_on(bundle: Path, path: Path | str, output: Path) -> None:
    """Write an HTML report on a gallery's error rates.

    It shows how they were measured, the photos behind false matches, and the assumptions. A server has the same page
    at /v1/report.

    \b
    Example:
      retrieval gallery report bundles/shop galleries/shop -o report.html
    """
    from index.database import POINT
    from index.location import open_gallery
    from retrieval.bundle.bundle import Bundle, require_match
    from retrieval.galleries.points import served_point
    from retrieval.reports.gallery_report import GalleryReport, render_gallery_report

    opened = Bundle.open(bundle)
    with open_gallery(path, read_only=True) as opened_gallery:
        require_match(opened, opened_gallery)
        point = served_point(opened_gallery.kept(POINT), opened, opened_gallery)
        write_file(output, render_gallery_report(GalleryReport.of(opened, opened_gallery, point)))
    click.echo(f"Wrote {output}.")
