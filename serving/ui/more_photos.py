"""The page's control for more photos of the same item: an input for another one, and previews with remove buttons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retrieval.arguments import MOST_QUERY_PHOTOS

from .page_events import ADDED
from .page_gradio import load_gradio, photo_input
from .several_html import previews_html

if TYPE_CHECKING:
    import gradio


@dataclass(frozen=True)
class MorePhotos:
    """The previews, the input for another photo, and hidden buttons that the previews click (page.js)."""

    area: gradio.Column
    previews: gradio.HTML
    control: gradio.Accordion
    another: gradio.Image
    removes: list[gradio.Button]

    @property
    def outputs(self) -> list[Any]:
        """The components that `updates` returns updates of."""
        return [self.area, self.previews, self.control, self.another]

    def updates(self, added: Sequence[str], *, visible: bool) -> tuple[Any, ...]:
        """Return updates for the photos that were added; the input is empty again, and hidden if the query is full."""
        gradio = load_gradio()
        control = gradio.Accordion(visible=1 + len(added) < MOST_QUERY_PHOTOS)
        return gradio.Column(visible=visible), previews_html(added), control, None


def more_photos() -> MorePhotos:
    """Return the control, hidden until there is a photo."""
    gradio = load_gradio()
    with gradio.Column(visible=False, elem_id="more") as area:
        previews = gradio.HTML("")
        with gradio.Accordion("Add another photo of the same item", open=False) as control:
            another = photo_input("Another photo", ADDED, height=220)
        with gradio.Row(elem_classes="r-picks"):
            buttons = [gradio.Button(str(n), elem_id=f"remove-{n}", min_width=0) for n in range(MOST_QUERY_PHOTOS - 1)]
    return MorePhotos(area, previews, control, another, buttons)
