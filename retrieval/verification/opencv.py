"""Import of OpenCV, the extra `verify`."""

from __future__ import annotations

import functools
from typing import Any

from retrieval.errors import MissingDependency


@functools.cache
def import_opencv() -> Any:
    """Import OpenCV and disable its threads, because requests and worker processes already use every core."""
    try:
        import cv2
    except ImportError as error:
        raise MissingDependency.of_extra("opencv-python-headless", "verify") from error
    cv2.setNumThreads(0)
    return cv2
