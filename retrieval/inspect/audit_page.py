"""The audit of a gallery as one HTML page with pictures."""

from __future__ import annotations

import html
from collections.abc import Callable

from retrieval.html import document, picture

from .audit import Audit, Crowd, Pair, Stray, summary

SHOWN = 30  # entries per section

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a202c; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
@media (prefers-color-scheme: dark) { body { color: #e8edf4; background: #0b1220; } }
h2 { font-size: 1.15rem; margin-top: 2rem; } .row { display: flex; flex-wrap: wrap; gap: .8rem; }
figure { margin: 0; width: 15rem; font-size: .85rem; } figure img { width: 7.3rem; height: 7.3rem; object-fit: cover; }
"""


def audit_page(report: Audit, thumbnail: Callable[[str], bytes | None]) -> str:
    """Render an audit as one HTML page with pictures."""

    def shown(photo_id: str) -> str:
        return picture(thumbnail(photo_id) or b"", alt=photo_id)

    def pair(entry: Pair) -> str:
        names = f"{html.escape(entry.item_id)} and {html.escape(entry.other_item_id)}"
        told = entry.kind or f"{entry.distance:.3f} apart"
        return _card(shown(entry.photo_id) + shown(entry.other_photo_id), f"{names}, {told}")

    def single(entry: Stray | Crowd) -> str:
        return _card(shown(entry.photo_id), f"{html.escape(entry.item_id)}, {entry.distance:.3f}")

    parts = [
        ("Items closer than the threshold", report.collisions, [pair(p) for p in report.collisions[:SHOWN]]),
        ("Duplicates in different items", report.duplicates, [pair(p) for p in report.duplicates[:SHOWN]]),
        ("Photos that do not find their own item", report.strays, [single(s) for s in report.strays[:SHOWN]]),
        ("The most crowded items, distance to the nearest others", (), [single(c) for c in report.crowds[:SHOWN]]),
    ]
    body = "".join(
        f"<h2>{title}{f': {len(entries)}' if isinstance(entries, list) else ''}</h2>"
        f'<div class="row">{"".join(cards) or "none"}</div>'
        for title, entries, cards in parts
    )
    head = f"<h1>Gallery audit</h1><p>{html.escape(summary(report))}</p>"
    return document("Gallery audit", style=STYLE, body=head + body)


def _card(pictures: str, caption: str) -> str:
    return f"<figure>{pictures}<figcaption>{caption}</figcaption></figure>"
