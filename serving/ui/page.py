"""The page at /: a photo in by upload, paste or webcam, or a part of it; the answer beside it, and what it rests on.

Gradio carries the photo as a file and nothing more: every byte of it goes through the gate of
`retrieval.images`, as over HTTP.
"""

from __future__ import annotations

import math
import os
import secrets
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from retrieval.errors import ImageRefused, ImageUnreadable, MissingDependency, RetrievalError
from retrieval.images import Source, crop, open_image
from retrieval.retriever import Retriever
from serving.http.limits import Busy
from serving.service import Service

from .answer_html import WAITING, answer_html, banner, drift_html, header_html, what_if_html
from .threshold_preview import WhatIf

if TYPE_CHECKING:
    import gradio

TITLE = "Which catalogue item is this?"
STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
TOP_K = 12
OWN_EXAMPLES = 6  # of the gallery's thumbnails, where no example is given
WAITING_EVENTS = 32  # one more is told to come back
KEPT_S = 3600  # how long an uploaded photo stays on the disk
WHOLE = (0, 100, 0, 100)  # left, right, top, bottom of the part that is searched, in percent
SIDES = ("left", "right", "top", "bottom")
JUDGE = "<p>Is that so?</p>"
VERDICTS = {"right": "Right", "wrong": "Wrong item", "unknown": "It is not in the catalogue"}


def load_page(service: Service, examples: Sequence[Path] = ()) -> FastAPI:
    """Return the page as an application of its own."""
    gradio = _gradio()
    mounted: FastAPI = gradio.mount_gradio_app(
        FastAPI(openapi_url=None),
        build_page(service, examples),
        path="/",
        show_error=False,
        max_file_size="10mb",
        allowed_paths=[],
        run_history=False,  # photos are not kept in the browser
        ssr_mode=False,
        css_paths=[STYLE],
        head=f"<script>{SCRIPT.read_text()}</script>",
        theme=_theme(),
        footer_links=[],
    )
    return mounted


def build_page(service: Service, examples: Sequence[Path] = ()) -> gradio.Blocks:
    """Return the page over a service; searches run in its pool, as those of the endpoint do."""
    gradio = _gradio()
    hidden = {"api_visibility": "private"}
    with (
        tempfile.TemporaryDirectory() as folder,  # Gradio keeps copies of the examples
        gradio.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEPT_S, KEPT_S)) as page,
    ):
        head = gradio.HTML(lambda: header_html(service.retriever, service.monitor.warning()))
        answered = gradio.State("")
        with gradio.Row(equal_height=False, elem_classes="r-main"):
            with gradio.Column(scale=2, min_width=280, elem_classes="r-ask"):
                photo = _photo()
                with gradio.Accordion("Search a part of it", open=False, elem_id="part"):
                    gradio.HTML("<p class='r-small'>Draw a box on the photo, or move the sides (percent).</p>")
                    sides = [
                        gradio.Slider(0, 100, value, step=1, label=side, elem_id=f"part-{side}", buttons=[])
                        for side, value in zip(SIDES, WHOLE, strict=True)
                    ]
                    part = gradio.Button("Search this part", size="sm")
                shown = list(examples) or gallery_examples(service.retriever, Path(folder))
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
                verdicts, noted = _verdicts(service, answered)
                _what_if(service)
                _drift(service)

        async def search(path: str | None, *box: float) -> tuple[Any, ...]:
            told, request_id = await _search(service, path, box)
            can_judge = bool(request_id) and service.settings.feedback is not None
            head = header_html(service.retriever, service.monitor.warning())
            return told, request_id, gradio.Row(visible=can_judge), JUDGE, head

        async def search_whole(path: str | None) -> tuple[Any, ...]:
            return (*await search(path, *WHOLE), *WHOLE)

        shown_then = [answer, answered, verdicts, noted, head]
        photo.change(
            search_whole, photo, [*shown_then, *sides], show_progress="minimal", concurrency_limit=None, **hidden
        )
        part.click(search, [photo, *sides], shown_then, show_progress="minimal", concurrency_limit=None, **hidden)
    return page.queue(max_size=WAITING_EVENTS)


async def _search(service: Service, path: str | None, box: Sequence[float]) -> tuple[str, str]:
    """Return the answer's HTML, and the id that feedback names it by: empty where there is nothing to judge."""
    if path is None:
        return WAITING, ""
    request_id = f"page-{secrets.token_hex(8)}"
    try:
        source: Source = Path(path)
        if tuple(box) != WHOLE:
            source, _ = await service.pool.run(lambda: _part_of(Path(path), box))
        result = await service.search(source, top_k=TOP_K, request_id=request_id)
    except (ImageRefused, Busy) as error:
        return banner("refused", "This photo cannot be searched", str(error)), ""
    return answer_html(result), request_id if result.nearest is not None else ""


def _part_of(path: Path, box: Sequence[float]) -> Source:
    left, right, top, bottom = box
    image = open_image(path)
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
    photo.preprocess = _path_of_upload  # Gradio's own would decode and save the photo again
    photo.async_move_resource_to_block_cache = _only_uploads  # and read any path, fetch any address
    return photo


def _verdicts(service: Service, answered: gradio.State) -> tuple[gradio.Row, gradio.HTML]:
    """Return the row of buttons that say whether an answer was right, and the line that asks and thanks."""
    gradio = _gradio()

    def judge(verdict: str, request_id: str) -> str:
        try:
            service.feedback(request_id, verdict)
        except (RetrievalError, OSError) as error:
            return f"<p role='status'>It could not be noted: {type(error).__name__}.</p>"
        return "<p role='status'>Noted, thank you.</p>"

    with gradio.Row(visible=False, elem_classes="r-verdicts") as row:
        noted = gradio.HTML(JUDGE, elem_id="noted")
        for verdict, label in VERDICTS.items():
            button = gradio.Button(label, size="sm", elem_id=f"verdict-{verdict}", min_width=60)
            button.click(partial(judge, verdict), answered, noted, show_progress="hidden", api_visibility="private")
    return row, noted


def _what_if(service: Service) -> None:
    """Add the slider that shows what another threshold would do."""
    gradio, curves = _gradio(), WhatIf.of(service.retriever.bundle)
    if curves is None:
        return
    served = service.retriever.bundle.threshold
    most = math.ceil(100 * float(curves.thresholds[-1])) / 100
    with gradio.Accordion("What if the threshold were another one?", open=False, elem_id="what-if"):
        slider = gradio.Slider(0, most, round(served, 3), step=0.001, label="Threshold, to look at only", buttons=[])
        shown = gradio.HTML(what_if_html(served, served, curves), elem_id="what-if-rates")

    def rates(value: float) -> str:
        bundle = service.retriever.bundle  # another one may have taken over
        now = WhatIf.of(bundle)
        return "" if now is None else what_if_html(float(value), bundle.threshold, now)

    slider.input(
        rates,
        slider,
        shown,
        show_progress="hidden",
        trigger_mode="always_last",
        api_visibility="private",
    )


def _drift(service: Service) -> None:
    """Add what is known of the newest photos, read when it is opened."""
    gradio = _gradio()

    def now() -> str:
        return drift_html(service.monitor.state(), service.monitor.warning())

    with gradio.Accordion("Do live photos look as they should?", open=False, elem_id="drift") as drift:
        shown = gradio.HTML(now, elem_id="drift-state")
    drift.expand(now, None, shown, show_progress="hidden", api_visibility="private")


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
