"""The demo in Gradio: a photo, one of three answers beside the catalogue's photo, and the error rate as a choice.

It asks a server through the Python client, so the answers are those of the API. Each target error rate has a threshold
of its own (`GET /v1/info`), which decides by the distance in the server's answer.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI
from PIL import Image

from index.search.distance import accepts
from retrieval.client import ApiError, RetrievalClient
from retrieval.errors import RetrievalError, photos_of_items
from retrieval.images import MAX_BYTES
from retrieval.messages import Info
from retrieval.search import result
from retrieval.search.result import MATCH, NO_MATCH, PERHAPS, RANKED, Decision, SearchResult

TITLE = "Which catalogue item is this?"
ABOUT = "Send a photo. The answer names the item, asks whether it is a certain one, or says that we do not have this."
ASK = "Of photos of things that we do not have, how many may be called something?"
WAITING = '<div class="answer"><h2>Send a photo</h2><p>You can drop, paste or take one.</p></div>'
SAYS = {
    MATCH: "Sure.",
    PERHAPS: "Not sure: please compare the two pictures.",
    NO_MATCH: "Nothing is close enough. The closest things are below, right or not.",
    RANKED: "There is no threshold yet, so nothing is decided. The closest things are below, right or not.",
    result.TWINS: "We may have this twice. Please check both.",
    result.SHARED_PHOTO: "Several items have this photo. Please check which one it is.",
    result.DAMAGED_PHOTO: "The photo is damaged: parts of it are missing. Please take it again.",
}
UNSURE = result.TWINS, result.SHARED_PHOTO, result.DAMAGED_PHOTO  # reasons why the nearest item is no match
YES, OTHER, NONE = "right", "wrong", "unknown"  # what visitors say about an answer
SHOWN = 6  # closest items


def build(client: RetrievalClient, examples: Sequence[Path] = ()) -> gr.Blocks:
    """Return the demo over a client, whose server must be ready."""
    demo, info = Demo(client), client.info()
    offered = [(_percent(at.target_fpir), at.target_fpir) for at in info.targets if at.threshold is not None]
    gone = [f"{_percent(at.target_fpir)} is not offered: {at.text}." for at in info.targets if at.threshold is None]
    served, static = info.target_fpir if offered else None, {"format": "png", "buttons": [], "visible": False}
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(3600, 3600)) as blocks:
        about, judged = gr.HTML(demo.header(served), elem_id="about"), gr.State()
        with gr.Row():
            with gr.Column(min_width=280):
                photo = gr.Image(type="filepath", image_mode=None, label="Your photo", height=280)
                photo.preprocess = lambda sent: sent and sent.path  # the server judges files that Gradio cannot read
                target = gr.Radio(offered, value=served, label=ASK, info=" ".join(gone), visible=bool(offered))
            with gr.Column(min_width=280):
                answer = gr.HTML(WAITING, elem_id="verdict")
                ours = gr.Image(elem_id="ours", height=240, interactive=False, **static)
                with gr.Row():
                    buttons = {said: gr.Button(size="sm", visible=False) for said in (YES, OTHER, NONE)}
        closest = gr.Gallery(label="The closest things", elem_id="closest", height="auto", **static)
        if examples:
            gr.Examples(
                [[str(path)] for path in examples], photo, label="Or try one of these photos", cache_examples=False
            )
        with gr.Accordion("The answer as JSON", open=False):
            raw = gr.JSON(show_label=False)
        shown = [answer, ours, closest, raw, judged, *buttons.values()]
        gr.on([photo.change, target.change], demo.search, [photo, target], shown, api_name="search")
        gr.on([blocks.load, target.change], demo.header, target, about, show_progress="hidden", api_name="header")
        for said, button in buttons.items():
            button.click(partial(demo.judge, said), judged, [*buttons.values()], api_visibility="private")
    return blocks.queue(default_concurrency_limit=8)


def application(blocks: gr.Blocks) -> FastAPI:
    """Return the web application of the demo, which loads nothing from other hosts."""
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["monospace"]}
    look = gr.themes.Soft(primary_hue="teal", neutral_hue="slate", **fonts)
    options = {"css_paths": Path(__file__).with_suffix(".css"), "max_file_size": MAX_BYTES, "ssr_mode": False}
    options |= {"run_history": False}  # no photos in the storage of a browser
    return gr.mount_gradio_app(FastAPI(), blocks, path="/", theme=look, **options)  # type: ignore[no-any-return]


class Demo:
    """The events of the demo: each asks the server of a client."""

    def __init__(self, client: RetrievalClient) -> None:
        self._client = client

    def header(self, target: float | None) -> str:
        """Return the title, and what searches with known and with unknown things answer at a target."""
        info = self._client.info()
        size = photos_of_items(info.gallery.photos, info.gallery.items)
        rates = "".join(f" {at.text}." for at in info.targets if at.target_fpir == target and at.text)
        return f"<h1>{TITLE}</h1><p>{ABOUT}</p><p><b>{size}.</b>{_safe(rates)}</p>"

    def search(self, photo: str | None, target: float | None) -> tuple[Any, ...]:
        """Search with a photo; return the answer, the catalogue's photo, the closest items and the API's answer."""
        if photo is None:
            return WAITING, _ours(), _closest([]), None, None, *_buttons()
        try:
            answer = self._client.search(Path(photo), top_k=SHOWN, explain=True)
            info, items = self._client.info(), answer.explanation.items if answer.explanation else ()
            near = [(self._thumbnail(item.photo_id), self._name(item.photo_id, item.item_id)) for item in items]
        except RetrievalError as error:
            raise gr.Error(escape(str(error)), print_exception=False) from None
        decision, names = decided(answer, info, target), [name for _, name in near]
        claims = int(decision in (MATCH, PERHAPS))
        told = verdict(answer, decision, names) + scale(answer, info, target)
        raw = {"target_fpir": target, "decision_at_target": decision, "answer": answer.to_dict()}
        return told, _ours(*near[:claims]), _closest(near[claims:]), raw, answer, *_buttons(decision, *names[:1])

    def judge(self, said: str, answer: SearchResult) -> list[Any]:
        """Send what a visitor says about an answer as feedback on the API's own: that at the target may differ."""
        item_id = answer.nearest.item_id if answer.nearest and said == YES and answer.decision == NO_MATCH else ""
        try:
            self._client.feedback(answer, OTHER if item_id else said, item_id=item_id)  # type: ignore[arg-type]
            gr.Info("Thank you. The server keeps it with the answer.")
        except RetrievalError as error:
            gr.Warning(escape(str(error)))
        return _buttons()

    def _thumbnail(self, photo_id: str) -> Image.Image | None:
        try:
            return Image.open(io.BytesIO(self._client.thumbnail(photo_id)))
        except ApiError:  # the gallery keeps no thumbnails, or the photo was removed
            return None

    def _name(self, photo_id: str, item_id: str) -> str:
        try:
            return str(self._client.photo(photo_id).metadata.get("name") or item_id)
        except ApiError:  # the photo was removed
            return item_id


def decided(answer: SearchResult, info: Info, target: float | None) -> Decision:
    """Return the decision on an answer at a target; at the target that serves, it is the server's own."""
    at = next((at for at in info.targets if at.target_fpir == target != info.target_fpir), None)
    if at is None or answer.nearest is None or answer.decision == RANKED:
        return answer.decision
    if at.threshold is None:
        raise gr.Error(escape(at.text), print_exception=False)
    if accepts(answer.nearest.distance, at.threshold) and answer.reason not in UNSURE:
        return MATCH
    return PERHAPS if accepts(answer.nearest.distance, max(at.threshold, at.perhaps_within or 0)) else NO_MATCH


def verdict(answer: SearchResult, decision: Decision, names: Sequence[str]) -> str:
    """Return an answer in words, as HTML, given the names of the closest items."""
    both = decision == PERHAPS and answer.reason in UNSURE[:2]
    item = _safe(" or ".join(names[: 1 + both]))
    titles = {MATCH: f"This is {item}", PERHAPS: f"Is it {item}?", NO_MATCH: "We do not have this"}
    told = SAYS.get(answer.reason if decision == PERHAPS else "") or SAYS[decision]
    return f'<div class="answer {decision}"><h2>{titles.get(decision, "The closest things")}</h2><p>{told}</p></div>'


def scale(answer: SearchResult, info: Info, target: float | None) -> str:
    """Return a line with the distance of the nearest item among the thresholds of all targets, as HTML."""
    limits = {at.target_fpir: at.threshold for at in info.targets if at.threshold is not None}
    if not limits or answer.nearest is None:
        return ""
    least, most = min(limits.values()), max(limits.values())
    room = most - least or least / 10

    def left(distance: float) -> str:
        return f"left:{100 * min(max((distance - least + room) / (most - least + 2 * room), 0), 1):.1f}%"

    marks = ["<hr><small class=end>closer</small>"]
    for name, limit in limits.items():
        chosen = " class=chosen" if name == target else ""
        marks.append(f'<i style="{left(limit)}"></i><small style="{left(limit)}"{chosen}>{_percent(name)}</small>')
    return f'<div class="scale">{"".join(marks)}<b style="{left(answer.nearest.distance)}"></b></div>'


def _ours(shown: tuple[Image.Image | None, str] = (None, "")) -> Any:
    return gr.update(value=shown[0], label=f"Ours: {shown[1]}", visible=shown[0] is not None)


def _closest(shown: Sequence[tuple[Image.Image | None, str]]) -> Any:
    return gr.update(value=[each for each in shown if each[0] is not None], visible=bool(shown))


def _buttons(decision: str = "", name: str = "") -> list[Any]:
    """Return what visitors may say about a decision; without one, nothing."""
    claims = decision in (MATCH, PERHAPS)
    it_is = gr.update(value=f"It is {name}{'' if claims else ' after all'}", visible=bool(name))
    another = gr.update(value="It is another of your things", visible=claims)
    return [it_is, another, gr.update(value="You do not have it", visible=bool(decision))]


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _safe(text: str) -> str:
    return escape(text).replace("{", "&#123;").replace("$", "&#36;")  # Gradio reads HTML as a template
