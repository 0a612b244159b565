"""The page at /: a photo in by upload, paste or webcam, the answer beside it, examples to click.

Gradio carries the photo as a file and nothing more: every byte of it goes through the gate of
`retrieval.images`, as over HTTP.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from retrieval.errors import ImageRefused, ImageUnreadable, MissingDependency
from retrieval.retriever import Retriever

from .answer import WAITING, answer_html, banner, header_html
from .limits import Busy, NothingRemote, SearchPool

if TYPE_CHECKING:
    import gradio

TITLE = "Which catalogue item is this?"
STYLE = Path(__file__).with_name("page.css")
TOP_K = 12
OWN_EXAMPLES = 6  # of the gallery's thumbnails, where no example is given
WAITING_EVENTS = 32  # one more is told to come back
KEPT_S = 3600  # how long an uploaded photo stays on the disk


def mount_page(app: FastAPI, retriever: Retriever, pool: SearchPool, examples: Sequence[Path] = ()) -> FastAPI:
    """Serve the page at / of an application."""
    gradio = _gradio()
    app.add_middleware(NothingRemote)
    mounted: FastAPI = gradio.mount_gradio_app(
        app,
        build_page(retriever, pool, examples),
        path="/",
        show_error=False,
        max_file_size="10mb",
        allowed_paths=[],
        run_history=False,  # photos are not kept in the browser
        ssr_mode=False,
        css_paths=[STYLE],
        theme=_theme(),
        footer_links=[],
    )
    return mounted


def build_page(retriever: Retriever, pool: SearchPool, examples: Sequence[Path] = ()) -> gradio.Blocks:
    """Return the page over a retriever; searches run in the pool, as those of the endpoint do."""
    gradio = _gradio()

    async def search(path: str | None) -> str:
        if path is None:
            return WAITING

        def work() -> str:
            return answer_html(retriever.search(Path(path), top_k=TOP_K))

        try:
            return await pool.run(work)
        except (ImageRefused, Busy) as error:
            return banner("refused", "This photo cannot be searched", str(error))

    with (
        tempfile.TemporaryDirectory() as folder,  # Gradio keeps copies of the examples
        gradio.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEPT_S, KEPT_S)) as page,
    ):
        gradio.HTML(header_html(retriever))
        with gradio.Row(equal_height=False, elem_classes="r-main"):
            with gradio.Column(scale=2, min_width=280, elem_classes="r-ask"):
                photo = gradio.Image(
                    type="filepath",
                    image_mode=None,
                    sources=["upload", "clipboard", "webcam"],
                    label="Your photo",
                    height=340,
                    buttons=[],
                )
                photo.preprocess = _path_of_upload  # Gradio's own would decode and save the photo again
                photo.async_move_resource_to_block_cache = _only_uploads  # and read any path, fetch any address
                shown = list(examples) or gallery_examples(retriever, Path(folder))
                if shown:
                    gradio.Examples(
                        [str(path) for path in shown],
                        inputs=photo,
                        label="Or try one of these",
                        examples_per_page=12,
                        cache_examples=False,
                        api_visibility="private",
                    )
            with gradio.Column(scale=3, min_width=280):
                answer = gradio.HTML(WAITING, elem_id="answer")
        photo.change(search, photo, answer, show_progress="minimal", api_visibility="private", concurrency_limit=None)
    return page.queue(max_size=WAITING_EVENTS)


def gallery_examples(retriever: Retriever, folder: Path) -> list[Path]:
    """Write a few thumbnails, spread over the gallery, as files and return them."""
    photo_ids = sorted(retriever.gallery.photo_ids())
    count = min(OWN_EXAMPLES, len(photo_ids))
    chosen = [photo_ids[(2 * i + 1) * len(photo_ids) // (2 * count)] for i in range(count)]
    written = []
    for number, photo_id in enumerate(chosen):
        if jpeg := retriever.gallery.thumbnail(photo_id):
            written.append(folder / f"example-{number}.jpg")
            written[-1].write_bytes(jpeg)
    return written


def _path_of_upload(payload: Any) -> str | None:
    return None if payload is None else str(payload.path)


async def _only_uploads(path: str | None) -> str | None:
    """Return the path of a file that Gradio holds already; anything else was made up by the client."""
    uploads = Path(_gradio().utils.get_upload_folder()).resolve()
    if path is not None and not Path(path).resolve().is_relative_to(uploads):
        raise ImageUnreadable("only an uploaded file can be searched")
    return path


def _theme() -> gradio.themes.Base:
    gradio = _gradio()
    system = ["ui-sans-serif", "system-ui", "sans-serif"]  # nothing is fetched from elsewhere
    mono = ["ui-monospace", "monospace"]
    return gradio.themes.Soft(primary_hue="teal", neutral_hue="slate", font=system, font_mono=mono)


def _gradio() -> Any:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise MissingDependency(
            "gradio is not installed", remedy="pip install 'retrieval[serve]', or --no-page"
        ) from error
    return gradio
