"""Draw the README's picture: photos that a finished demo was searched with, and its answers.

    python -m tools.picture demo docs/answers.jpg

The photos are the first of their kind among the demo's queries: a match with the right item, a perhaps with the right
item if there is one, and an unknown item without a match.
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path

from PIL import Image

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.retriever import Retriever
from retrieval.search.result import MATCH, PERHAPS, Match
from training.data.synthetic.catalogue import KNOWN, UNKNOWN

WIDTH, QUALITY = 393, 86  # pixels of a photo, and JPEG quality
ANSWERS = {
    "match": ("#0f766e", "#ccfbf1", "✓", "This is {}"),
    "perhaps": ("#92400e", "#fef3c7", "?", "Is it {}?"),
    "no_match": ("#475569", "#e2e8f0", "–", "We do not have this"),
}
STYLE = """
body { margin: 0; padding: 18px; display: flex; gap: 18px; background: white; font: 16px "DejaVu Sans", sans-serif }
section { flex: 1; border-radius: 14px; overflow: hidden; border: 1px solid #e2e8f0 }
img { display: block; width: 100%; aspect-ratio: 1; object-fit: cover }
div { display: flex; align-items: center; gap: 12px; padding: 14px; min-height: 66px }
div img { width: 66px; border-radius: 8px } b { font-size: 26px } p { margin: 0; line-height: 1.3; font-weight: bold }
"""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="directory of a finished demo")
    parser.add_argument("output", type=Path, help="JPEG file to write")
    arguments = parser.parse_args()
    photograph(page(arguments.demo)).save(arguments.output, "JPEG", quality=QUALITY, optimize=True)
    print(f"Wrote {arguments.output}.")


def page(demo: Path) -> str:
    """Return the picture as HTML."""
    found: dict[str, str] = {}
    with Retriever.open(demo / "bundle", demo / "gallery") as retriever:
        for decision, photo, match in answers(retriever, read_catalogue(demo / "photos" / "queries.csv")):
            if decision not in found:
                thumbnail = None if match is None else retriever.gallery.thumbnail(match.photo_id)
                found[decision] = _section(decision, photo, match, thumbnail)
            if len(found) == len(ANSWERS):
                break
    return f"<!doctype html><style>{STYLE}</style>{''.join(found[kind] for kind in ANSWERS if kind in found)}"


def answers(retriever: Retriever, photos: list[Photo]) -> Iterator[tuple[str, Photo, Match | None]]:
    """Yield the right answers to photos: the decision, the photo, and the item that the answer names."""
    for photo in photos:
        result = retriever.search(photo.path)
        named = {MATCH: result.matches, PERHAPS: result.review}.get(result.decision, ())
        first = named[0] if named else None
        kind = photo.metadata["kind"]
        if kind == UNKNOWN and first is None and result.decision in ANSWERS:
            yield result.decision, photo, None
        elif kind == KNOWN and first is not None and first.item_id == photo.item_id:
            yield result.decision, photo, first


def photograph(html: str) -> Image.Image:
    """Return a page as headless Chromium shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": WIDTH * html.count("<section"), "height": 100})
        shown.set_content(html)
        picture = shown.screenshot(full_page=True)
        browser.close()
    return Image.open(io.BytesIO(picture)).convert("RGB")


def _section(decision: str, photo: Photo, match: Match | None, thumbnail: bytes | None) -> str:
    ink, paper, sign, words = ANSWERS[decision]
    name = "" if match is None else escape(str(match.metadata.get("name", match.item_id)))
    beside = f"<b>{sign}</b>" if thumbnail is None else f"<img src='{_data(thumbnail)}'>"
    answer = f"<div style='color: {ink}; background: {paper}'>{beside}<p>{words.format(name)}</p></div>"
    return f"<section><img src='{_data(photo.read())}'>{answer}</section>"


def _data(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


if __name__ == "__main__":
    main()
