"""Search page at /: upload, paste or webcam photo, region selection, answer and feedback.

Gradio renders the page and runs its events. It handles photos as tokens and never reads the files; `retrieval.images`
opens their bytes like those of HTTP requests.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import to_thread
from fastapi import FastAPI
from starlette.applications import Starlette

from retrieval.errors import ImageRefused, ImageUnreadable, MissingDependency, RetrievalError
from retrieval.images import Source, crop, open_image, read_file
from retrieval.places_svg import STYLE as PLACES
from retrieval.result import RANKED
from retrieval.retriever import Retriever
from retrieval.threshold.feedback import RIGHT, UNKNOWN, WRONG
from serving.api.problems import problem_response
from serving.http.limits import Busy, Rates
from serving.service import NoSuchThing, Service

from .page_events import EVENT, SessionAnswer, SessionAnswers, events_of
from .page_html import WAITING, answer_html, banner, example_label, example_labels_html, header_html, shown_items
from .page_routes import page_routes
from .uploads import Uploads
from .verified_html import AskedPhoto

if TYPE_CHECKING:
    import gradio

log = logging.getLogger("retrieval.serving")
TITLE = "Which catalogue item is this?"
STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
TOP_K = 12
OWN_EXAMPLES = 6  # gallery thumbnails shown when no examples are given
MOST_EXAMPLES = 12
CLIENT_PHOTOS, PHOTOS = 8, 16  # photos of the largest size on disk, per client and in total
UNQUEUED = {"queue": False, "api_visibility": "private"}  # events bypass the queue and keep no session
QUEUE_S = 1.0  # polling interval of Gradio's queue, which stays empty; the default 0.001 s uses 6 % of a core
WHOLE_PHOTO = (0, 100, 0, 100)  # left, right, top, bottom of the searched region, in percent
SIDES = ("left", "right", "top", "bottom")
QUESTIONS = {  # by whether the answer is a match
    True: "<p>Is this right?</p>",
    False: "<p>If one of these is right, say so below its picture. If not:</p>",
}
VERDICTS = {RIGHT: "Yes, this one", UNKNOWN: "It is not in the catalogue", WRONG: "It is another item, not shown"}


@dataclass(frozen=True)
class Verdicts:
    """The feedback controls of the page."""

    area: gradio.Column
    status: gradio.HTML
    buttons: gradio.Row
    right: gradio.Button

    @property
    def outputs(self) -> list[Any]:
        """The components that `updates` returns updates of."""
        return [self.area, self.status, self.buttons, self.right]

    def updates(self, *, visible: bool, matched: bool) -> tuple[Any, ...]:
        """Return updates for a new answer; "Yes, this one" is offered for a match."""
        gradio = _gradio()
        area, buttons = gradio.Column(visible=visible), gradio.Row(visible=visible)
        return area, QUESTIONS[matched], buttons, gradio.Button(visible=matched)


def load_page(service: Service, examples: Sequence[Path] = (), *, rates: Rates) -> Starlette:
    """Return the page as an ASGI application."""
    most = service.settings.max_bytes
    uploads = Uploads(client_bytes=CLIENT_PHOTOS * most, total_bytes=PHOTOS * most)
    os.environ["GRADIO_TEMP_DIR"] = str(uploads.folder / "gradio")  # read at import; the default is shared
    gradio = _gradio()
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
        css=PLACES,
        head=f"<script>{SCRIPT.read_text()}</script>",
        theme=_theme(),
        footer_links=[],
    )
    return page_routes(gradio_app, events_of(blocks, uploads), uploads, rates=rates, max_bytes=most)


def build_page(service: Service, uploads: Uploads, examples: Sequence[Path] = ()) -> gradio.Blocks:
    """Return the page of a service; its searches run in the service's pool."""
    gradio, session_answers = _gradio(), SessionAnswers()
    with gradio.Blocks(title=TITLE, analytics_enabled=False) as page:
        head = gradio.HTML()
        with gradio.Row(equal_height=False, elem_classes="r-main"):
            with gradio.Column(scale=2, min_width=280, elem_classes="r-ask"):
                photo = _photo()
                with gradio.Accordion("Search a part of it", open=False, elem_id="part"):
                    gradio.HTML("<p class='r-small'>Draw a box on the photo, or move the sides (percent).</p>")
                    sides = [
                        gradio.Slider(0, 100, value, step=1, label=side, elem_id=f"part-{side}", buttons=[])
                        for side, value in zip(SIDES, WHOLE_PHOTO, strict=True)
                    ]
                    part = gradio.Button("Search this part", size="sm")
                _examples(photo, uploads, example_images(service.retriever, examples))
            with gradio.Column(scale=3, min_width=280):
                answer = gradio.HTML(WAITING, elem_id="answer")
                verdicts = _verdicts(service, session_answers)

        def header() -> str:
            return header_html(service.retriever, drift=bool(service.monitor.warning()))

        async def search(token: str | None, *box: float) -> tuple[Any, ...]:
            event = EVENT.get()
            if token is None:
                uploads.forget(event.client, event.session)
            html, shown = await _search(service, uploads, token, box)
            session_answers.record(event, shown)
            can_judge = shown is not None and service.settings.feedback is not None
            matched = shown is not None and bool(shown.matched)
            return html, *verdicts.updates(visible=can_judge, matched=matched), header()

        async def search_whole(token: str | None) -> tuple[Any, ...]:
            return (*await search(token, *WHOLE_PHOTO), *WHOLE_PHOTO)

        page.load(header, None, head, show_progress="hidden", api_name="header", **UNQUEUED)
        outputs = [answer, *verdicts.outputs, head]
        progress = {"show_progress": "minimal", "show_progress_on": [answer]}
        photo.change(search_whole, photo, [*outputs, *sides], api_name="search_whole", **progress, **UNQUEUED)
        part.click(search, [photo, *sides], outputs, api_name="search_part", **progress, **UNQUEUED)
    return page


async def _search(
    service: Service, uploads: Uploads, token: str | None, box: Sequence[float]
) -> tuple[str, SessionAnswer | None]:
    """Return the answer's HTML, and the answer for feedback, None if there is nothing to judge."""
    if token is None:
        return WAITING, None
    event = EVENT.get()
    try:
        image: Source = await to_thread.run_sync(uploads.read, token, event.client)
        if tuple(box) != WHOLE_PHOTO:
            image, _ = await service.pool.run(partial(_part_of, image, box))
        explain = service.retriever.bundle.verifier is not None  # to draw the places that agree
        result = await service.search(image, top_k=TOP_K, any_review=True, explain=explain, request_id=event.request_id)
    except (ImageRefused, NoSuchThing, Busy) as error:
        event.status = problem_response(error).status_code
        return banner("refused", "This photo cannot be searched", str(error)), None
    page = answer_html(result, AskedPhoto(token, tuple(box)))
    if result.nearest is None or result.decision == RANKED:
        return page, None
    items = tuple(match.item_id for match in shown_items(result))
    return page, SessionAnswer(event.request_id, items, items[0] if result.matches else "")


def _part_of(source: Source, box: Sequence[float]) -> Source:
    left, right, top, bottom = box
    image = open_image(source)
    if not (0 <= left < right <= 100 and 0 <= top < bottom <= 100):
        raise ImageUnreadable("the part is empty", remedy="Left lies before right, top above bottom")
    width, height = image.width / 100, image.height / 100
    return crop(image, (left * width, top * height, right * width, bottom * height))


def _photo() -> gradio.Image:
    photo = _gradio().Image(
        type="filepath",
        image_mode=None,
        sources=["upload", "clipboard", "webcam"],
        label="Your photo",
        height=340,
        buttons=[],
        elem_id="photo",
    )
    photo.preprocess = _token_of  # Gradio's default would open, decode and re-save the photo
    photo.postprocess = _image_data
    return photo


def _token_of(payload: Any) -> str | None:
    return None if payload is None else str(payload.path)


def _image_data(token: str | None) -> Any:
    """Return the image data of a stored photo. The empty `meta` keeps Gradio from copying the file to its cache."""
    if token is None:
        return None
    return _gradio().data_classes.ImageData(path=token, url=f"gradio_api/file={token}", meta={})


def _examples(photo: gradio.Image, uploads: Uploads, images: Sequence[tuple[bytes, str]]) -> None:
    """Add clickable example photos, selected by number. The page's script shows their labels."""
    if not images:
        return
    gradio, tokens = _gradio(), [uploads.store(None, image) for image, _ in images]
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


def _verdicts(service: Service, session_answers: SessionAnswers) -> Verdicts:
    """Return the feedback controls. The buttons on cards click those of class `r-picks`, which are hidden (page.js)."""
    gradio = _gradio()
    with gradio.Column(visible=False, elem_classes="r-verdicts") as area:
        status = gradio.HTML(QUESTIONS[True], elem_id="noted")
        with gradio.Row() as buttons:
            named = {
                verdict: gradio.Button(label, size="lg", elem_id=f"verdict-{verdict}", min_width=120)
                for verdict, label in VERDICTS.items()
            }
            with gradio.Row(elem_classes="r-picks"):
                picks = [gradio.Button(str(n), elem_id=f"verdict-pick-{n}", min_width=0) for n in range(TOP_K)]

    def judge(verdict: str, number: int | None = None) -> tuple[Any, ...]:
        event = EVENT.get()
        answer = session_answers.of(event)
        try:
            picked = "" if number is None or answer is None else answer.item(number)
            if verdict == WRONG and answer is not None and picked == answer.matched:
                verdict, picked = RIGHT, ""
            service.feedback("" if answer is None else answer.request_id, verdict, picked)
        except (RetrievalError, OSError) as error:
            event.status = problem_response(error).status_code if isinstance(error, RetrievalError) else 500
            why = "" if answer is not None else ": it was judged already, or is gone"
            return f"<p role='status'>This could not be saved{why}. Search again, then answer.</p>", gradio.Row()
        session_answers.record(event, None)  # one verdict per answer
        return "<p role='status'>Saved, thank you.</p>", gradio.Row(visible=False)

    events = [(named[verdict], verdict, partial(judge, verdict)) for verdict in VERDICTS]
    events += [(pick, f"pick_{n}", partial(judge, WRONG, n)) for n, pick in enumerate(picks)]
    for button, name, on_click in events:
        button.click(on_click, None, [status, buttons], show_progress="hidden", api_name=f"verdict_{name}", **UNQUEUED)
    return Verdicts(area, status, buttons, named[RIGHT])


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
    photo_ids = sorted(retriever.gallery.photo_ids())
    count = min(OWN_EXAMPLES, len(photo_ids))
    chosen = [photo_ids[(2 * i + 1) * len(photo_ids) // (2 * count)] for i in range(count)]
    return [jpeg for photo_id in chosen if (jpeg := retriever.gallery.thumbnail(photo_id))]


def _theme() -> gradio.themes.Base:
    gradio = _gradio()
    system = ["ui-sans-serif", "system-ui", "sans-serif"]  # no web fonts
    mono = ["ui-monospace", "monospace"]
    return gradio.themes.Soft(primary_hue="teal", neutral_hue="slate", font=system, font_mono=mono)


def _gradio() -> Any:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise MissingDependency.of_extra("gradio", "serve") from error
    return gradio
