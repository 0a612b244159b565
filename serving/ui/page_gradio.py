"""Gradio, imported when the page is built, and the photo input of the page."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from retrieval.errors import MissingDependency

from .lean_import import lean_imports

if TYPE_CHECKING:
    import gradio

UNQUEUED = {"queue": False, "api_visibility": "private"}  # events bypass the queue and keep no session


def load_gradio() -> Any:
    """Import Gradio without its analytics; raise MissingDependency if it is not installed."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        with lean_imports():
            import gradio
    except ImportError as error:
        raise MissingDependency.of_extra("gradio", "serve") from error
    return gradio


def photo_input(label: str, elem_id: str, *, height: int) -> gradio.Image:
    """Return an input of a photo by upload, paste or camera, whose value is a token of the upload store."""
    photo = load_gradio().Image(
        type="filepath",
        image_mode=None,
        sources=["upload", "clipboard", "webcam"],
        label=label,
        height=height,
        buttons=[],
        elem_id=elem_id,
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
    return load_gradio().data_classes.ImageData(path=token, url=f"gradio_api/file={token}", meta={})
