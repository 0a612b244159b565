"""The command `retrieval serve`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from retrieval.errors import InvalidParameter
from retrieval.places import Place

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp"))
EXAMPLES = 12  # shown on the page at most
Folder = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=Folder)
@click.argument("gallery", type=Place())
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=7860, show_default=True)
@click.option("--threads", type=int, default=None, help="Searches at a time.  [default: one a core]")
@click.option("--page/--no-page", default=True, help="Serve the page at / beside the endpoint.")
@click.option("--examples", type=Folder, multiple=True, help="Photo, or folder of photos, to click on the page.")
def serve(
    bundle: Path,
    gallery: Path | str,
    host: str,
    port: int,
    threads: int | None,
    page: bool,
    examples: Sequence[Path],
) -> None:
    """Answer searches: POST /v1/search, and a page at /.

    The threshold is the bundle's; nothing here changes it.

    \b
    Example:
      retrieval serve bundles/shop galleries/shop
      curl --data-binary @query.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:7860/v1/search
    """
    import uvicorn

    from retrieval.retriever import Retriever

    from .api import create_app
    from .settings import ServeSettings

    settings = ServeSettings(threads=threads) if threads is not None else ServeSettings()
    retriever = Retriever.open(bundle, gallery)
    point = retriever.bundle.operating_point
    click.echo(
        f"{len(retriever.gallery)} photos of {retriever.gallery.items} items; "
        f"threshold {point.threshold:.4f}, FPIR {point.target_fpir:g} {point.status}."
    )
    view = retriever.outlook()
    if view is not None and view.outgrown:
        click.echo(f"Warning: {view.warning()}.")
    app = create_app(retriever, settings=settings, page=page, examples=example_files(examples))
    click.echo(f"Search at http://{host}:{port}/v1/search" + (f", page at http://{host}:{port}" if page else ""))
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=10, server_header=False)


def example_files(places: Sequence[Path]) -> list[Path]:
    """Return the photos of the given files and folders, evenly picked where there are many."""
    found: list[Path] = []
    for place in places:
        if not place.exists():
            raise InvalidParameter("--examples", "exist", str(place))
        inside = sorted(place.rglob("*")) if place.is_dir() else [place]
        found += [file for file in inside if file.suffix.lower() in SUFFIXES]
    if len(found) > EXAMPLES:
        found = [found[round(i * (len(found) - 1) / (EXAMPLES - 1))] for i in range(EXAMPLES)]
    return found
