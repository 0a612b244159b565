"""Search page at /: upload, paste or camera photos, region selection, answer and feedback.

Gradio renders the page and runs its events. It handles photos as tokens and never reads the files; `retrieval.images`
opens their bytes like those of HTTP requests.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import FastAPI
from starlette.applications import Starlette

from index.search.leave_one_out import evenly_spaced
from retrieval.errors import ImageRefused
from retrieval.images import open_image, read_file
from retrieval.retriever import Retriever
from serving.http.rates import Rates
from serving.ops.drift_monitor import drift_warning
from serving.service import Service

from .page_events import EVENT, SessionAnswers, events_of
from .page_gradio import UNQUEUED, load_gradio, photo_input
from .page_html import WAITING, example_label, example_labels_html, header_html
from .page_routes import is_shown, page_routes
from .page_search import TOP_K, WHOLE_PHOTO, PageSearch
from .page_verdicts import Verdicts, verdict_buttons
from .uploads import Uploads

if TYPE_CHECKING:
    import gradio

log = logging.getLogger("retrieval.serving")
TITLE = "Which catalogue item is this?"
STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
OWN_EXAMPLES = 6  # gallery thumbnails shown when no examples are given
MOST_EXAMPLES = 12
PREVIEW_SIDE = 1024  # of a photo that browsers do not show
CLIENT_PHOTOS, PHOTOS = 8, 16  # photos of the largest size on disk, per client and in total
QUEUE_S = 1.0  # polling interval of Gradio's queue, which stays empty; the default 0.001 s uses 6 % of a core
SIDES = ("left", "right", "top", "bottom")


def load_page(service: Service, examples: Sequence[Path] = (), *, rates: Rates) -> Starlette:
    """Return the page as an ASGI application."""
    most = service.settings.max_bytes
    uploads = Uploads(client_bytes=CLIENT_PHOTOS * most, total_bytes=PHOTOS * most)
    os.environ["GRADIO_TEMP_DIR"] = str(uploads.folder / "gradio")  # read at import; the default is shared
    gradio = load_gradio()
    blocks = build_page(service, uploads, examples)
    blocks._queue.sleep_when_free = blocks._queue.progress_update_sleep_when_free = QUEUE_S
    gradio_app: FastAPI = gradio.mount_gradio_app(
        FastAPI(openapi_url=None),
        blocks,
        path="/",
        show_error=False,
        allowed_paths=[],
        run_history=False,  # no photos in browser storage
        ssr_mode=False,
        css_paths=[STYLE],
        head=f"<script>{SCRIPT.read_text()}</script>",
        theme=_theme(),
        footer_links=[],
    )

    async def preview(data: bytes) -> bytes:
        return (await service.pool.run(partial(preview_of, data)))[0]

    events = events_of(blocks, uploads)
    return page_routes(gradio_app, events, uploads, rates=rates, max_bytes=most, preview=preview)


def _shown(image: bytes) -> bytes | None:
    """Return a picture of an example photo that browsers do not show, None if they do or it cannot be read."""
    try:
        return None if is_shown(image) else preview_of(image)
    except ImageRefused as error:
        log.warning("an example photo cannot be shown: %s", error)
        return None


def preview_of(data: bytes) -> bytes:
    """Return a photo as a JPEG that browsers show, of at most PREVIEW_SIDE pixels per side."""
    image = open_image(data, min_side=PREVIEW_SIDE)
    image.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def build_page(service: Service, uploads: Uploads, examples: Sequence[Path] = ()) -> gradio.Blocks:
    """Return the page of a service; its searches run in the service's pool."""
    gradio, session_answers, searches = load_gradio(), SessionAnswers(), PageSearch(service, uploads)
    with gradio.Blocks(title=TITLE, analytics_enabled=False) as page:
        head, photo, sides, part, answer, verdicts = _layout(service, uploads, session_answers, examples)

        def header() -> str:
            return header_html(service.retriever, drift=bool(drift_warning(service.drifts())))

        async def search(token: str | None, *box: float) -> tuple[Any, ...]:
            found, event = await searches.run(token, box), EVENT.get()
            session_answers.record(event, found.answer)
            can_judge = found.answer is not None and service.settings.feedback is not None
            return found.html, *verdicts.updates(found.answer, visible=can_judge), header()

        async def search_whole(token: str | None) -> tuple[Any, ...]:
            event = EVENT.get()
            if token is not None:
                uploads.begin(token, event.client, event.session)
            else:
                uploads.clear(event.client, event.session)
            return (*await search(token, *WHOLE_PHOTO), *WHOLE_PHOTO)

        page.load(header, None, head, show_progress="hidden", api_name="header", **UNQUEUED)
        query = [photo, *sides]
        outputs = [answer, *verdicts.outputs, head]
        progress = {"show_progress": "minimal", "show_progress_on": [answer]}
        photo.change(search_whole, photo, [*outputs, *sides], api_name="search_whole", **progress, **UNQUEUED)
        part.click(search, query, outputs, api_name="search_part", **progress, **UNQUEUED)
    return page


class _Layout(NamedTuple):
    """The components of the page that events read and write."""

    head: gradio.HTML
    photo: gradio.Image
    sides: list[gradio.Slider]
    part: gradio.Button
    answer: gradio.HTML
    verdicts: Verdicts


def _layout(service: Service, uploads: Uploads, answers: SessionAnswers, examples: Sequence[Path]) -> _Layout:
    """Lay out the page in the running `gradio.Blocks`."""
    gradio = load_gradio()
    head = gradio.HTML()
    with gradio.Row(equal_height=False, elem_classes="r-main"):
        with gradio.Column(scale=2, min_width=280, elem_classes="r-ask"):
            photo = photo_input("Your photo", "photo", height=340)
            sides, part = _part()
            _examples(photo, uploads, example_images(service.retriever, examples))
        with gradio.Column(scale=3, min_width=280):
            answer = gradio.HTML(WAITING, elem_id="answer")
            verdicts = verdict_buttons(service, answers, TOP_K)
    return _Layout(head, photo, sides, part, answer, verdicts)


def _part() -> tuple[list[gradio.Slider], gradio.Button]:
    """Return the sides of the searched region and the button that searches it."""
    gradio = load_gradio()
    with gradio.Accordion("Search a part of it", open=False, elem_id="part"):
        gradio.HTML("<p class='r-small'>Draw a box on the photo, or move the sides (percent).</p>")
        sides = [
            gradio.Slider(0, 100, value, step=1, label=side, elem_id=f"part-{side}", buttons=[])
            for side, value in zip(SIDES, WHOLE_PHOTO, strict=True)
        ]
        return sides, gradio.Button("Search this part", size="sm")


def _examples(photo: gradio.Image, uploads: Uploads, images: Sequence[tuple[bytes, str]]) -> None:
    """Add clickable example photos, selected by number. The page's script shows their labels."""
    if not images:
        return
    gradio, tokens = load_gradio(), [uploads.store(None, image, _shown(image)) for image, _ in images]
    gradio.HTML(example_labels_html([label for _, label in images]), visible="hidden")
    shown = gradio.Dataset(
        components=[photo],
        samples=[[token] for token in tokens],
        type="index",
        label="Or try one of these",
        samples_per_page=MOST_EXAMPLES,
    )

    def pick(number: int) -> str:
        return tokens[number]

    shown.click(pick, shown, photo, show_progress="hidden", api_name="example", **UNQUEUED)


def example_images(retriever: Retriever, files: Sequence[Path]) -> list[tuple[bytes, str]]:
    """Return the readable files with their labels, or gallery thumbnails without labels if there are none."""
    found = []
    for file in files:
        try:
            found.append((read_file(file), example_label(file)))
        except ImageRefused as error:
            log.warning("an example photo is left out: %s", error)
    return found or [(image, "") for image in gallery_examples(retriever)]


def gallery_examples(retriever: Retriever) -> list[bytes]:
    """Return a few thumbnails, evenly spaced over the gallery."""
    gallery = retriever.gallery
    now = gallery.snapshot()
    chosen = [now.photo(position)[0] for position in evenly_spaced(now, OWN_EXAMPLES).tolist()]
    return [jpeg for photo_id in chosen if (jpeg := gallery.thumbnail(photo_id))]


def _theme() -> gradio.themes.Base:
    gradio = load_gradio()
    system = ["ui-sans-serif", "system-ui", "sans-serif"]  # no web fonts
    mono = ["ui-monospace", "monospace"]
    return gradio.themes.Soft(primary_hue="teal", neutral_hue="slate", font=system, font_mono=mono)
