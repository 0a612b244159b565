"""First search of a retriever: reads the gallery and runs the model, so that the first client does not wait for it."""

from __future__ import annotations

import io
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from PIL import Image

from retrieval.errors import RetrievalError

if TYPE_CHECKING:
    from retrieval.retriever import Retriever


def warm_up(retriever: Retriever) -> None:
    """Search with a gray photo."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "gray").save(file, "JPEG")
    retriever.search(file.getvalue(), top_k=1)


def warm_up_in_background(retriever: Retriever) -> None:
    """Search with a gray photo in a thread; errors are left to the service, which warms up again when it starts."""

    def search() -> None:
        with suppress(RetrievalError, OSError):
            warm_up(retriever)

    Thread(target=search, name="warm-up", daemon=True).start()
