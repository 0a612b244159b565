"""Search page at /: upload, paste or webcam photo, region selection, answer, feedback and threshold preview.

Gradio renders the page and runs its events. It handles photos as tokens and never reads the files; `retrieval.images`
opens their bytes like those of HTTP requests.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import to_thread
from fastapi import FastAPI
from starlette.applications import Starlette

from retrieval.errors import ImageRefused, ImageUnreadable, MissingDependency, RetrievalError
from retrieval.images import Source, crop, open_image, read_file
from retrieval.result import RANKED
from retrieval.retriever import Retriever
from serving.api.problems import problem_response
from serving.http.limits import Busy, Rates
from serving.service import NoSuchThing, Service

from .page_events import EVENT, SessionAnswers, events_of
from .page_html import (
    WAITING,
    answer_html,
    banner,
    drift_html,
    example_label,
    example_labels_html,
    header_html,
    threshold_preview_html,
)
from .page_routes import page_routes
from .threshold_preview import ThresholdCurves
from .uploads import Uploads

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
WHOLE_PHOTO = (0, 100, 0, 100)  # left, right, top, bottom of the searched region, in percent
SIDES = ("left", "right", "top", "bottom")
QUESTION = "<p>Is this answer right?</p>"
VERDICTS = {"right": "Right", "wrong": "Wrong item", "unknown": "Not in the catalogue"}


def load_page(service: Service, examples: Sequence[Path] = (), *, rates: Rates) -> Starlette:
    """Return the page as an ASGI application."""
    most = service.settings.max_bytes
    uploads = Uploads(client_bytes=CLIENT_PHOTOS * most, total_bytes=PHOTOS * most)
    os.environ["GRADIO_TEMP_DIR"] = str(uploads.folder / "gradio")  # read at import; the default is shared
    gradio = _gradio()
    blocks = build_page(service, uploads, examples)
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
                verdicts, status = _verdicts(service, session_answers)
                _threshold_preview(service)
                _drift(service)

        def header() -> str:
            return header_html(service.retriever, service.monitor.warning())

        async def search(token: str | None, *box: float) -> tuple[Any, ...]:
            event = EVENT.get()
            if token is None:
                uploads.forget(event.client, event.session)
            html, request_id = await _search(service, uploads, token, box)
            session_answers.record(event, request_id)
            can_judge = bool(request_id) and service.settings.feedback is not None
            return html, gradio.Row(visible=can_judge), QUESTION, header()

        async def search_whole(token: str | None) -> tuple[Any, ...]:
            return (*await search(token, *WHOLE_PHOTO), *WHOLE_PHOTO)

        page.load(header, None, head, show_progress="hidden", api_name="header", **UNQUEUED)
        outputs = [answer, verdicts, status, head]
        photo.change(
            search_whole, photo, [*outputs, *sides], show_progress="minimal", api_name="search_whole", **UNQUEUED
        )
        part.click(search, [photo, *sides], outputs, show_progress="minimal", api_name="search_part", **UNQUEUED)
    return page


async def _search(service: Service, uploads: Uploads, token: str | None, box: Sequence[float]) -> tuple[str, str]:
    """Return the answer's HTML and its request id for feedback, empty if there is nothing to judge."""
    if token is None:
        return WAITING, ""
    event = EVENT.get()
    try:
        image: Source = await to_thread.run_sync(uploads.read, token, event.client)
        if tuple(box) != WHOLE_PHOTO:
            image, _ = await service.pool.run(partial(_part_of, image, box))
        result = await service.search(image, top_k=TOP_K, request_id=event.request_id)
    except (ImageRefused, NoSuchThing, Busy) as error:
        event.status = problem_response(error).status_code
        return banner("refused", "This photo cannot be searched", str(error)), ""
    can_be_judged = result.nearest is not None and result.decision != RANKED
    return answer_html(result), event.request_id if can_be_judged else ""


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


def _verdicts(service: Service, session_answers: SessionAnswers) -> tuple[gradio.Row, gradio.HTML]:
    """Return the row of feedback buttons and its status line."""
    gradio = _gradio()

    def judge(verdict: str) -> str:
        event = EVENT.get()
        try:
            service.feedback(session_answers.of(event), verdict)
        except (RetrievalError, OSError) as error:
            event.status = problem_response(error).status_code if isinstance(error, RetrievalError) else 500
            return f"<p role='status'>The feedback could not be saved: {type(error).__name__}.</p>"
        return "<p role='status'>Saved, thank you.</p>"

    with gradio.Row(visible=False, elem_classes="r-verdicts") as row:
        status = gradio.HTML(QUESTION, elem_id="noted")
        for verdict, label in VERDICTS.items():
            button = gradio.Button(label, size="sm", elem_id=f"verdict-{verdict}", min_width=60)
            on_click = partial(judge, verdict)
            button.click(on_click, None, status, show_progress="hidden", api_name=f"verdict_{verdict}", **UNQUEUED)
    return row, status


def _threshold_preview(service: Service) -> None:
    """Add the threshold preview: a slider with error rates."""
    gradio, curves = _gradio(), ThresholdCurves.of(service.retriever.bundle)
    if curves is None or service.retriever.rates() is not None:  # the curves are of the bundle's own gallery
        return
    served = service.retriever.point.threshold
    most = math.ceil(100 * float(curves.thresholds[-1])) / 100
    with gradio.Accordion("Error rates of other thresholds", open=False, elem_id="threshold-preview"):
        slider = gradio.Slider(0, most, round(served, 3), step=0.001, label="Threshold (preview only)", buttons=[])
        shown = gradio.HTML(threshold_preview_html(served, served, curves), elem_id="threshold-preview-rates")

    def rates(value: float) -> str:
        bundle = service.retriever.bundle  # a reload may have swapped it
        now = ThresholdCurves.of(bundle)
        return "" if now is None else threshold_preview_html(float(value), bundle.threshold, now)

    slider.input(
        rates,
        slider,
        shown,
        show_progress="hidden",
        trigger_mode="always_last",
        api_name="rates",
        **UNQUEUED,
    )


def _drift(service: Service) -> None:
    """Add the drift table, refreshed when it is opened."""
    gradio = _gradio()

    def now() -> str:
        return drift_html(service.monitor.state(), service.monitor.warning())

    with gradio.Accordion("Drift of live photos", open=False, elem_id="drift") as drift:
        shown = gradio.HTML(now(), elem_id="drift-state")
    drift.expand(now, None, shown, show_progress="hidden", api_name="drift", **UNQUEUED)


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
