"""What our pages of one file share: the frame, and pictures that travel inside it."""

from __future__ import annotations

import base64
import html


def document(title: str, *, style: str, body: str, script: str = "") -> str:
    """Return a whole HTML page that loads nothing; the title is escaped, the rest is HTML, CSS and JavaScript."""
    ending = f"<script>{script}</script>" if script else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body>{body}{ending}</body></html>"
    )


def data_uri(jpeg: bytes) -> str:
    """Return a JPEG as an address that holds it."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


def picture(jpeg: bytes, *, alt: str = "") -> str:
    """Return a JPEG as an image element; `alt` is escaped, and is empty where the text beside it says the same."""
    return f'<img alt="{html.escape(alt)}" src="{data_uri(jpeg)}">'
