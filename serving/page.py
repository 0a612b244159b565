"""The page: a photo in, the matches side by side, or a clear no-match with the closest item greyed out."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastapi import FastAPI

from retrieval.errors import ImageRefused, MissingDependency
from retrieval.retriever import Match, Retriever, SearchResult

from .limits import Busy, SearchPool

if TYPE_CHECKING:
    import gradio

STYLE = (Path(__file__).parent / "page.css").read_text()
TOP_K = 12
WAITING = (
    '<div class="r-empty"><p>Upload, paste or take a photo of one product.</p>'
    "<p>You get the catalogue items it shows, or a plain <em>not in the catalogue</em>.</p></div>"
)


def mount_page(app: FastAPI, retriever: Retriever, pool: SearchPool, examples: Sequence[Path] = ()) -> FastAPI:
    """Serve the page at / of an application."""
    gradio = _gradio()
    mounted: FastAPI = gradio.mount_gradio_app(
        app,
        build_page(retriever, pool, examples),
        path="/",
        show_error=False,
        max_file_size="10mb",
        allowed_paths=[],
        css=STYLE,
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
        data = Path(path).read_bytes()
        try:
            return answer_html(await pool.run(lambda: retriever.search(data, top_k=TOP_K)))
        except (ImageRefused, Busy) as error:
            return banner("refused", "This photo cannot be searched", f"{error.message}. {error.remedy}")

    with gradio.Blocks(title="Retrieval", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        gradio.HTML(header_html(retriever))
        with gradio.Row(equal_height=False):
            with gradio.Column(scale=2, min_width=280):
                photo = gradio.Image(
                    type="filepath",
                    sources=["upload", "clipboard", "webcam"],
                    label="Your photo",
                    height=340,
                    buttons=[],
                )
            with gradio.Column(scale=3, min_width=280):
                answer = gradio.HTML(WAITING, elem_id="answer")
        if examples:
            gradio.Examples(
                [str(path) for path in examples], inputs=photo, label="Try one of these", cache_examples=False
            )
        photo.change(search, photo, answer, show_progress="minimal", api_name=False, concurrency_limit=4)
    return page.queue(max_size=32)


def header_html(retriever: Retriever) -> str:
    """Return the head of the page: what is searched, and what the threshold promises."""
    point = retriever.bundle.operating_point
    return (
        '<header class="r-head"><h1>Which catalogue item is this?</h1><p>'
        f"<b>{retriever.gallery.items:,}</b> items, <b>{len(retriever.gallery):,}</b> photos. "
        f"A match is a distance of at most <b>{point.threshold:.3f}</b>: about {point.target_fpir:.0%} of photos of "
        f"unknown items would still return something (<b>{html.escape(point.status)}</b>).</p></header>"
    )


def answer_html(result: SearchResult) -> str:
    """Return the answer as cards; every text of the catalogue is escaped."""
    if result.nearest is None:
        return banner("none", "Not in the catalogue", "The gallery holds no photos yet.")
    scale = 1.25 * max(result.threshold, result.nearest.distance, *(match.distance for match in result.matches), 1e-6)
    if not result.matches:
        told = f"The closest item is {result.nearest.distance:.3f} away; a match needs {result.threshold:.3f} or less."
        card = _card(result.nearest, result.threshold, scale, note="closest, but not a match")
        return banner("none", "Not in the catalogue", told) + f'<div class="r-cards r-grey">{card}</div>'
    count = len(result.matches)
    told = f"{count} item{'s' if count > 1 else ''} within the threshold, best first."
    cards = "".join(_card(match, result.threshold, scale) for match in result.matches)
    return banner("match", f"This is {result.matches[0].item_id}", told) + f'<div class="r-cards">{cards}</div>'


def banner(kind: str, title: str, text: str) -> str:
    """Return the line that states the decision."""
    return f'<div class="r-banner r-{kind}" role="status"><h2>{html.escape(title)}</h2><p>{html.escape(text)}</p></div>'


def _card(match: Match, threshold: float, scale: float, *, note: str = "") -> str:
    name = html.escape(match.item_id)
    source = html.escape(f"v1/thumbnails/{quote(match.photo_id, safe='/')}", quote=True)
    told = html.escape(note) if note else f"distance {match.distance:.3f}"
    width, line = 100 * match.distance / scale, 100 * threshold / scale
    return (
        f'<figure class="r-card"><img src="{source}" alt="{name}" loading="lazy"><figcaption><b>{name}</b>'
        f"<span>{told}</span>"
        f'<span class="r-bar" title="distance {match.distance:.4f}, threshold {threshold:.4f}">'
        f'<i style="width:{width:.1f}%"></i><u style="left:{line:.1f}%"></u></span></figcaption></figure>'
    )


def _theme() -> gradio.themes.Base:
    gradio = _gradio()
    system = ["ui-sans-serif", "system-ui", "sans-serif"]  # nothing is fetched from elsewhere
    mono = ["ui-monospace", "monospace"]
    return gradio.themes.Soft(primary_hue="teal", neutral_hue="slate", font=system, font_mono=mono)


def _gradio() -> Any:
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "0")
    try:
        import gradio
    except ImportError as error:
        raise MissingDependency(
            "gradio is not installed", remedy="pip install 'retrieval[serve]', or --no-page"
        ) from error
    return gradio
