"""Search page at /: upload, paste or camera photos, a part of the photo, answer and feedback.

Gradio renders the page and runs its events. It handles photos as tokens and never reads the files; `retrieval.images`
opens their bytes like those of HTTP requests. Verdicts go from the page's script to `/v1/feedback`.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.applications import Starlette

from index.search.leave_one_out import evenly_spaced
from retrieval.errors import ImageRefused, ImageUnreadable, InvalidParameter, MissingDependency
from retrieval.images import MAX_BYTES, open_image, read_file
from retrieval.retriever import Retriever
from retrieval.search.boxes import WINDOWS
from retrieval.search.result import BBox
from serving.access.limits import Busy, NoSuchThing
from serving.api.problems import problem_response
from serving.ops.drift import drift_warning
from serving.service import Service

from .answers import WAITING, answer_html, example_label, header_html, labels_html, parts_html, refused_html
from .routes import EVENT, events_of, page_routes
from .uploads import Uploads

if TYPE_CHECKING:
    import gradio

log = logging.getLogger("retrieval.serving")
TITLE = "Which catalogue item is this?"
STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
TOP_K = 12
OWN_EXAMPLES = 6  # gallery thumbnails shown when no examples are given
MOST_EXAMPLES = 12
CLIENT_PHOTOS, PHOTOS = 8, 16  # photos of the largest size in memory, per client and in total
QUEUE_S = 1.0  # polling interval of Gradio's queue, which stays empty; the default 0.001 s uses 6 % of a core
SIDES = {"left": 0, "right": 100, "top": 0, "bottom": 100}  # of the searched part, in percent: the whole photo
UNQUEUED = {"queue": False, "api_visibility": "private"}  # events bypass the queue and keep no session


def load_page(service: Service, examples: Sequence[Path] = ()) -> Starlette:
    """Return the page as an ASGI application; raise MissingDependency without Gradio."""
    uploads = Uploads(client_bytes=CLIENT_PHOTOS * MAX_BYTES, total_bytes=PHOTOS * MAX_BYTES)
    folder = tempfile.mkdtemp(prefix="retrieval-gradio-")  # private; the default is shared, and no photo is written
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["GRADIO_TEMP_DIR"] = folder  # read at import
    gradio = _gradio()
    blocks = build_page(service, uploads, examples)
    blocks._queue.sleep_when_free = blocks._queue.progress_update_sleep_when_free = QUEUE_S
    system = ["ui-sans-serif", "system-ui", "sans-serif"]  # no web fonts
    theme = gradio.themes.Soft(primary_hue="teal", neutral_hue="slate", font=system, font_mono=["monospace"])
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
        theme=theme,
        footer_links=[],
    )
    return page_routes(gradio_app, events_of(blocks, uploads), uploads)


def build_page(service: Service, uploads: Uploads, examples: Sequence[Path] = ()) -> gradio.Blocks:
    """Return the page of a service; its searches run in the service's pool."""
    gradio, searches = _gradio(), PageSearch(service, uploads)
    with gradio.Blocks(title=TITLE, analytics_enabled=False) as page:
        head = gradio.HTML()
        with gradio.Row(equal_height=False, elem_classes="r-main"):
            with gradio.Column(scale=2, min_width=280, elem_classes="r-ask"):
                photo = _photo_input()
                with gradio.Accordion("Search a part of it", open=False, elem_id="part"):
                    gradio.HTML("<p class='r-small'>Draw a box on the photo, or move the sides (percent).</p>")
                    sides = [
                        gradio.Slider(0, 100, value, step=1, label=side, elem_id=f"part-{side}", buttons=[])
                        for side, value in SIDES.items()
                    ]
                    part = gradio.Button("Search this part", size="sm")
                parts = gradio.Button("Find all items in the photo", size="sm", elem_id="parts")
                _examples(photo, uploads, example_images(service.retriever, examples))
            with gradio.Column(scale=3, min_width=280):
                answer = gradio.HTML(WAITING, elem_id="answer")

        async def search_whole(token: str | None) -> tuple[Any, ...]:
            return (*await searches.photo(token), *SIDES.values())

        progress = {"show_progress": "minimal", "show_progress_on": [answer], **UNQUEUED}
        page.load(searches.header, None, head, show_progress="hidden", api_name="header", **UNQUEUED)
        photo.change(search_whole, photo, [answer, head, *sides], api_name="search_whole", **progress)
        part.click(searches.photo, [photo, *sides], [answer, head], api_name="search_part", **progress)
        parts.click(searches.parts, photo, [answer, head], api_name="search_all", **progress)
    return page


class PageSearch:
    """Searches of a service with the stored photo of the running event; they return the answer and the header."""

    def __init__(self, service: Service, uploads: Uploads) -> None:
        self._service, self._uploads = service, uploads

    def header(self) -> str:
        """Return the header of the page."""
        return header_html(self._service.retriever, drift=bool(drift_warning(self._service.drift.state())))

    async def photo(self, token: str | None, *sides: float) -> tuple[str, str]:
        """Search with a photo, or the part within its sides: left, right, top, bottom in percent."""
        if token is None:
            event = EVENT.get()
            self._uploads.clear(event.client, event.session)
        return await self._shown(token, partial(self._search, sides=sides)), self.header()

    async def parts(self, token: str | None) -> tuple[str, str]:
        """Rank the items by parts of a photo."""
        return await self._shown(token, self._search_parts), self.header()

    async def _search(self, data: bytes, *, sides: Sequence[float]) -> str:
        service, event = self._service, EVENT.get()
        bbox = None
        if sides and tuple(sides) != tuple(SIDES.values()):
            bbox, _waited = await service.pool.run(partial(_part_of, data, sides))
        explain = service.retriever.bundle.verifier is not None  # to tell the number of details that agree
        result = await service.search(
            data, bbox=bbox, top_k=TOP_K, any_review=True, explain=explain, request_id=event.request_id
        )
        return answer_html(result, event.request_id if service.judged is not None else "")

    async def _search_parts(self, data: bytes) -> str:
        return parts_html(await self._service.search_boxes(data, WINDOWS, top_k=1))

    async def _shown(self, token: str | None, search: Callable[[bytes], Awaitable[str]]) -> str:
        if token is None:
            return WAITING
        event = EVENT.get()
        try:
            return await search(self._uploads.read(token, event.client))
        except (ImageRefused, InvalidParameter, NoSuchThing, Busy) as error:
            event.status = problem_response(error).status_code
            return refused_html(str(error))


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


def _gradio() -> Any:
    """Import Gradio without its analytics."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise MissingDependency.of_extra("gradio", "serve") from error
    return gradio


def _photo_input() -> gradio.Image:
    """Return an input of a photo by upload, paste or camera, whose value is a token of the upload store."""
    sources = ["upload", "clipboard", "webcam"]
    photo = _gradio().Image(
        type="filepath", image_mode=None, sources=sources, label="Your photo", height=340, buttons=[], elem_id="photo"
    )
    photo.preprocess = lambda payload: None if payload is None else str(payload.path)  # the default would re-save it
    photo.postprocess = _image_data
    return photo


def _image_data(token: str | None) -> Any:
    """Return the image data of a stored photo. The empty `meta` keeps Gradio from copying the file to its cache."""
    if token is None:
        return None
    return _gradio().data_classes.ImageData(path=token, url=f"gradio_api/file={token}", meta={})


def _examples(photo: gradio.Image, uploads: Uploads, images: Sequence[tuple[bytes, str]]) -> None:
    """Add clickable example photos, selected by number, with labels."""
    if not images:
        return
    gradio, tokens = _gradio(), [uploads.store(None, image) for image, _ in images]
    gradio.HTML(labels_html([label for _, label in images]), visible="hidden")  # shown by the page's script
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


def _part_of(data: bytes, sides: Sequence[float]) -> BBox:
    """Return the part of a photo within sides in percent, as a bounding box in pixels."""
    left, right, top, bottom = sides
    if not (left < right and top < bottom):
        raise ImageUnreadable("the part is empty", remedy="Left lies before right, top above bottom")
    image = open_image(data)
    width, height = image.width / 100, image.height / 100
    return left * width, top * height, right * width, bottom * height
