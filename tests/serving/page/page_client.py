"""The page as its own script uses it, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx

RUN = "/gradio_api/run/predict"
UPLOAD = "/gradio_api/upload"
META = {"_type": "gradio.FileData"}


def upload(page: httpx.Client, image: bytes, name: str = "photo.jpg") -> str:
    response = page.post(UPLOAD, files={"files": (name, image)})
    response.raise_for_status()
    path: str = response.json()[0]
    return path


def event(page: httpx.Client, name: str) -> int:
    """Return the number of the page's event of a name."""
    dependencies = page.get("/config").json()["dependencies"]
    (number,) = (d["id"] for d in dependencies if d["api_name"] == name)
    return int(number)


def run(page: httpx.Client, number: int, *data: Any, session: str = "test", **others: Any) -> httpx.Response:
    """Run an event as the page's own script does."""
    body = {"data": data, "fn_index": number, "session_hash": session, **others}
    return page.post(RUN, json=body)


def ask(page: httpx.Client, session: str = "test", **file: Any) -> str:
    """Search with a photo, and return the answer's HTML, or the refusal."""
    response = run(page, event(page, "search_whole"), {"meta": META, **file}, session=session)
    return str(response.json()["data"][0]) if response.status_code == 200 else response.text
