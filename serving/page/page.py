"""Search page at /: a photo or a part of it, answer and feedback.

Gradio renders the page and runs its events; the page's script adds gestures and the view of an item. Gradio handles
photos as tokens and never reads the files; `retrieval.images` opens their bytes like those of HTTP requests. Verdicts
go from the page's script to `/v1/feedback`.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray
from starlette.applications import Starlette

from index.files import working_folder
from index.gallery import Gallery
from index.snapshot import Snapshot
from retrieval.errors import ImageRefused, ImageUnreadable, InvalidParameter, importing
from retrieval.images import full_size, open_image, read_file
from retrieval.process import without_proxies
from retrieval.retriever import Retriever
from retrieval.search.boxes import WINDOWS
from retrieval.search.result import BBox
from serving.errors import Busy, NotFound
from serving.ops.drift import drift_warning
from serving.problems import problem_response
from serving.service import Service

from .answers import WAITING, answer_html, example_label, header_html, labels_html, parts_html, refused_html
from .routes import EVENT, Preview, events_of, page_routes
from .uploads import Uploads

if TYPE_CHECKING:
    import gradio

log = logging.getLogger("retrieval.serving")
TITLE = "Which catalogue item is this?"
ABOUT = "Send a photo and get the item of the catalogue that it shows, or hear that there is none like it."
TOOLS = """
<p class="r-tools"><label class="r-camera">Take a photo
<input type="file" accept="image/*" capture="environment"></label>
<span class="r-small" id="part-hint" hidden>Drag on the photo to search with a part of it.
<button type="button" id="part-clear" hidden>Whole photo</button></span></p>
"""
STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
TOP_K = 12
OWN_EXAMPLES, UNKNOWN_EXAMPLES = 6, 2  # photos of the gallery that are shown when no examples are given
MOST_EXAMPLES = 12
CLIENT_BYTES, ALL_BYTES = 80 * 2**20, 160 * 2**20  # of photos in memory, per client and in total
QUEUE_S = 1.0  # polling interval of Gradio's queue, which stays empty; the default 0.001 s uses 6 % of a core
UNQUEUED = {"queue": False, "api_visibility": "private"}  # events bypass the queue and keep no session


def load_page(service: Service, examples: Sequence[Path] = ()) -> Starlette:
    """Return the page as an ASGI application; raise MissingDependency if Gradio is missing or fails."""
    uploads = Uploads(client_bytes=CLIENT_BYTES, total_bytes=ALL_BYTES)
    stack = ExitStack()
    folder = stack.enter_context(working_folder())  # private; the default is shared, and no photo is written
    atexit.register(stack.close)
    os.environ["GRADIO_TEMP_DIR"] = str(folder)  # read at import
    gradio = _gradio()
    searches = PageSearch(service, uploads)
    tokens = searches.add_examples(examples)
    blocks = build_page(searches)
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
    preview = Preview(TITLE, ABOUT, next(iter(tokens), ""))
    return page_routes(gradio_app, events_of(blocks, uploads), uploads, preview)


def build_page(searches: PageSearch) -> gradio.Blocks:
    """Return the page of some searches and their examples."""
    gradio = _gradio()
    with gradio.Blocks(title=TITLE, analytics_enabled=False) as page:
        head = gradio.HTML()
        with gradio.Row(equal_height=False, elem_classes="r-main"):
            with gradio.Column(scale=2, min_width=280, elem_classes="r-ask"):
                photo = _photo_input()
                gradio.HTML(TOOLS)
                part = gradio.Textbox(elem_id="part", show_label=False, container=False)  # set by the page's script
                words = gradio.Textbox(label="Or search by words", visible=searches.reads_words, elem_id="words")
                parts = gradio.Button("Find all items in the photo", elem_id="parts", variant="primary")
                _examples(photo, searches.examples)
            with gradio.Column(scale=3, min_width=280):
                answer = gradio.HTML(WAITING, elem_id="answer")

        progress = {"show_progress": "minimal", "show_progress_on": [answer], **UNQUEUED}
        page.load(searches.header, None, head, show_progress="hidden", api_name="header", **UNQUEUED)
        photo.change(searches.photo, photo, [answer, head], api_name="search_whole", **progress)
        part.change(searches.photo, [photo, part], [answer, head], api_name="search_part", **progress)
        words.submit(searches.words, words, [answer, head], api_name="search_words", **progress)
        parts.click(searches.parts, photo, [answer, head], api_name="search_all", **progress)
    return page


@dataclass(frozen=True)
class Example:
    """A photo to try, and the ids of gallery photos that its search leaves out."""

    image: bytes
    label: str = ""
    left_out: tuple[str, ...] = ()


class PageSearch:
    """Searches of a service with the stored photo of the running event; they return the answer and the header."""

    def __init__(self, service: Service, uploads: Uploads) -> None:
        self._service, self._uploads = service, uploads
        self.examples: dict[str, Example] = {}  # by token in the upload store

    def add_examples(self, files: Sequence[Path]) -> dict[str, Example]:
        """Return the readable files, or photos of the gallery if there are none, by token in the upload store."""
        found = []
        for file in files:
            try:
                found.append(Example(read_file(file), example_label(file)))
            except ImageRefused as error:
                log.warning("an example photo is left out: %s", error)
        found = found or gallery_examples(self._service.retriever)
        self.examples = {self._uploads.store(None, example.image): example for example in found}
        return self.examples

    def header(self) -> str:
        """Return the header of the page."""
        return header_html(self._service.retriever, drift=bool(drift_warning(self._service.drift.state())))

    async def photo(self, token: str | None, part: str = "") -> tuple[str, str]:
        """Search with a photo, or with a part of it: its left, upper, right and lower side, in shares of the photo."""
        if token is None:
            event = EVENT.get()
            self._uploads.clear(event.client, event.session)
        search = partial(self._search, part=part, left_out=self._left_out(token))
        return await self._shown(token, search), self.header()

    async def parts(self, token: str | None) -> tuple[str, str]:
        """Search with each part of a photo."""
        return await self._shown(token, partial(self._search_parts, left_out=self._left_out(token))), self.header()

    @property
    def reads_words(self) -> bool:
        """Whether the bundle has a text tower."""
        return bool(self._service.retriever.bundle.text_key)

    async def words(self, text: str) -> tuple[str, str]:
        """Search with words."""
        try:
            shown = answer_html(await self._service.search_text(text, top_k=TOP_K))
        except (InvalidParameter, Busy) as error:
            EVENT.get().status, shown = problem_response(error).status_code, refused_html(str(error), "This")
        return shown, self.header()

    async def _search(self, data: bytes, *, part: str, left_out: Sequence[str]) -> str:
        service, event = self._service, EVENT.get()
        bbox = None
        if part:
            bbox, _waited = await service.pool.run(partial(_part_of, data, part))
        retriever = service.retriever
        explain = retriever.bundle.verifier is not None  # to tell the number of details that agree
        result = await service.search(
            data,
            bbox=bbox,
            top_k=TOP_K,
            any_review=True,
            explain=explain,
            left_out=left_out,
            request_id=event.request_id,
        )
        judged = service.judged is not None and not left_out
        _, rates = retriever.gallery_point.measured()
        least_p = 0.0 if rates is None else float(rates.p_values(np.array([-1.0]))[0])
        return answer_html(result, event.request_id if judged else "", least_p=least_p)

    async def _search_parts(self, data: bytes, *, left_out: Sequence[str]) -> str:
        return parts_html(await self._service.search_boxes(data, WINDOWS, top_k=1, left_out=left_out))

    def _left_out(self, token: str | None) -> tuple[str, ...]:
        example = self.examples.get(token or "")
        return () if example is None else example.left_out

    async def _shown(self, token: str | None, search: Callable[[bytes], Awaitable[str]]) -> str:
        if token is None:
            return WAITING
        event = EVENT.get()
        try:
            return await search(self._uploads.read(token, event.client))
        except (ImageRefused, InvalidParameter, NotFound, Busy) as error:
            event.status = problem_response(error).status_code
            return refused_html(str(error))


def _evenly_spaced(snapshot: Snapshot, count: int) -> NDArray[np.int64]:
    """Return the positions of up to `count` live photos, evenly spaced in insertion order."""
    positions = np.flatnonzero(snapshot.live)
    count = min(count, len(positions))
    return np.asarray(positions[(2 * np.arange(count) + 1) * len(positions) // max(1, 2 * count)])


def gallery_examples(retriever: Retriever) -> list[Example]:
    """Return photos of a gallery, evenly spaced, as if they were new: their searches leave them out.

    The searches of the last ones leave out all photos of their items, which are unknown then.
    """
    gallery, found = retriever.gallery, []
    if not isinstance(gallery, Gallery):
        return []  # nothing can be left out
    now = gallery.snapshot()
    chosen = _evenly_spaced(now, OWN_EXAMPLES + UNKNOWN_EXAMPLES)
    for place, position in enumerate(chosen.tolist()):
        photo_id, item_id, _ = now.photo(position)
        jpeg = gallery.thumbnail(photo_id)
        own = [name for name, _, _ in gallery.photos(item_id)]
        if jpeg is None:
            continue
        if len(own) == 1 or place >= OWN_EXAMPLES:
            found.append(Example(jpeg, "Not in the catalogue", tuple(own)))
        else:
            found.append(Example(jpeg, "", (photo_id,)))
    return found


def _gradio() -> Any:
    """Import Gradio without its analytics."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with importing("gradio", "serve"), without_proxies():
        import gradio
    return gradio


def _photo_input() -> gradio.Image:
    """Return an input of a photo, whose value is a token of the upload store. The script adds paste and camera."""
    photo = _gradio().Image(
        type="filepath",
        image_mode=None,
        sources=["upload"],
        label="Your photo",
        height=340,
        buttons=[],
        elem_id="photo",
    )
    photo.preprocess = lambda payload: None if payload is None else str(payload.path)  # the default would re-save it
    photo.postprocess = _image_data
    return photo


def _image_data(token: str | None) -> Any:
    """Return the image data of a stored photo. The empty `meta` keeps Gradio from copying the file to its cache."""
    if token is None:
        return None
    return _gradio().data_classes.ImageData(path=token, url=f"gradio_api/file={token}", meta={})


def _examples(photo: gradio.Image, examples: Mapping[str, Example]) -> None:
    """Add clickable example photos by token, selected by number, with labels."""
    if not examples:
        return
    gradio, tokens = _gradio(), list(examples)
    gradio.HTML(labels_html([example.label for example in examples.values()]), visible="hidden")  # shown by the script
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


def _part_of(data: bytes, part: str) -> BBox:
    """Return a part of a photo, in shares of its width and height, as a bounding box in pixels."""
    left, upper, right, lower = map(float, part.split(","))
    if not (left < right and upper < lower):
        raise ImageUnreadable("the part is empty", remedy="Draw a box on the photo")
    image = open_image(data)
    width, height = full_size(image)
    return left * width, upper * height, right * width, lower * height
