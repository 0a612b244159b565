"""Take the screenshot of the page for the README, with a real browser and a real search.

Example, after `make demo SERVE=0`:
    python -m research.benchmarks.page_screenshot demo/bundle demo/gallery demo/photos/queries/0001.jpg -o docs/page.png
"""

from __future__ import annotations

import io
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click
import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from retrieval.retriever import Retriever
from serving.app import create_app
from serving.cli import example_files

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
Folder = click.Path(path_type=Path, exists=True)


@click.command()
@click.argument("bundle", type=Folder)
@click.argument("gallery", type=Folder)
@click.argument("photo", type=Folder)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("docs/page.png"), show_default=True)
@click.option("--examples", type=Folder, multiple=True, help="Photos to click.")
@click.option("--width", default=1180, show_default=True)
@click.option("--height", default=820, show_default=True, help="Smallest height in pixels; 0 for the whole page.")
@click.option("--dark", is_flag=True)
def main(
    bundle: Path,
    gallery: Path,
    photo: Path,
    output: Path,
    examples: tuple[Path, ...],
    width: int,
    height: int,
    dark: bool,
) -> None:
    """Search with PHOTO on the page and save a screenshot."""
    app = create_app(Retriever.open(bundle, gallery), examples=example_files(examples))
    with serving(app) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        scheme: Literal["dark", "light"] = "dark" if dark else "light"
        page = browser.new_page(viewport={"width": width, "height": height or 820}, color_scheme=scheme)
        page.set_default_timeout(120_000)  # ms; a busy machine needs long to load the page
        page.goto(address)
        page.locator("#answer .r-empty").wait_for()
        page.locator("input[type=file]").first.set_input_files(photo)
        page.locator("#answer .r-banner").wait_for()
        page.wait_for_function("[...document.images].every(image => image.complete)")
        page.wait_for_timeout(800)  # wait for animations
        shot = page.screenshot(full_page=not height)
        browser.close()
    output.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(output, optimize=True)
    click.echo(f"Wrote {output}, {output.stat().st_size / 1024:.0f} KB.")


@contextmanager
def serving(app: object) -> Iterator[str]:
    """Serve an application on a free local port and yield its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))  # type: ignore[arg-type]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            if not thread.is_alive():
                raise click.ClickException("the server did not start")
            time.sleep(0.05)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main()
