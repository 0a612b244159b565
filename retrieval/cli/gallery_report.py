"""Command `retrieval gallery report`."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.files import check_place, write_file

from .options import Place

Folder = click.Path(path_type=Path)


@click.command("report")
@click.argument("bundle", type=Folder)
@click.argument("path", type=Place())
@click.option("-o", "--output", required=True, type=Folder, help="HTML file to write.")
def gallery_report(bundle: Path, path: Path | str, output: Path) -> None:
    """Write an HTML report on a gallery's error rates.

    It shows how they were measured, the photos behind false matches, and the assumptions. A server has the same page
    at /v1/report.

    \b
    Example:
      retrieval gallery report bundles/shop galleries/shop -o report.html
    """
    from index.database import POINT
    from index.location import open_gallery
    from retrieval.bundle.bundle import Bundle
    from retrieval.bundle.served_point import served_point
    from retrieval.compatibility import require_match
    from retrieval.threshold.gallery_report.data import GalleryReport
    from retrieval.threshold.gallery_report.page import render_gallery_report

    check_place(output)
    opened = Bundle.open(bundle)
    with open_gallery(path, read_only=True) as gallery:
        require_match(opened, gallery)
        point = served_point(gallery.kept(POINT), opened)
        write_file(output, render_gallery_report(GalleryReport.of(opened, gallery, point)))
    click.echo(f"Wrote {output}.")
