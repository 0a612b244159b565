"""RFC 9457 problem documents: one HTTP status for each leaf of the tree of errors."""

from __future__ import annotations

import re
from http import HTTPStatus

from starlette.responses import JSONResponse

from retrieval.errors import RetrievalError

STATUS = {
    # client errors
    "InvalidParameter": HTTPStatus.UNPROCESSABLE_ENTITY,
    "ImageUnreadable": HTTPStatus.BAD_REQUEST,
    "ImageTooLarge": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "ImageUnsupported": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "NotFound": HTTPStatus.NOT_FOUND,
    "GalleryMismatch": HTTPStatus.CONFLICT,
    "ReadOnly": HTTPStatus.CONFLICT,
    "PhotoChanged": HTTPStatus.PRECONDITION_FAILED,
    "PruneRefused": HTTPStatus.CONFLICT,
    "CalibrationError": HTTPStatus.CONFLICT,  # the gallery's photos set no threshold
    # temporary conditions
    "DiskFull": HTTPStatus.INSUFFICIENT_STORAGE,
    "PartlyWritten": HTTPStatus.INSUFFICIENT_STORAGE,
    "Busy": HTTPStatus.SERVICE_UNAVAILABLE,
    "GalleryBusy": HTTPStatus.SERVICE_UNAVAILABLE,
    "GalleryLocked": HTTPStatus.SERVICE_UNAVAILABLE,
    "GalleryUnavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    # server errors: details go to the log, not to the client
    "BundleCorrupt": HTTPStatus.INTERNAL_SERVER_ERROR,
    "BundleMismatch": HTTPStatus.INTERNAL_SERVER_ERROR,
    "EncoderRefused": HTTPStatus.INTERNAL_SERVER_ERROR,
    "DataError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "GalleryCorrupt": HTTPStatus.INTERNAL_SERVER_ERROR,
    "KeyFileError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "MissingDependency": HTTPStatus.INTERNAL_SERVER_ERROR,
    "RunError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "TrainingDiverged": HTTPStatus.INTERNAL_SERVER_ERROR,
}
HEADERS: dict[int, dict[str, str]] = {HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": "1"}}
MEDIA_TYPE = "application/problem+json"


class ProblemResponse(JSONResponse):
    """Problem document as a response."""

    media_type = MEDIA_TYPE

    def __init__(self, content: dict[str, str | int]) -> None:
        self.content = content
        status = int(content["status"])
        super().__init__(content, status_code=status, headers=HEADERS.get(status))


def problem(status: int, title: str, detail: str = "", *, kind: str = "about:blank") -> ProblemResponse:
    """Return a problem document."""
    return ProblemResponse({"type": kind, "title": title, "status": int(status), "detail": detail})


def problem_response(error: RetrievalError) -> ProblemResponse:
    """Return the problem document of an error; details of server errors stay in the log."""
    name = type(error).__name__
    status = STATUS.get(name, HTTPStatus.INTERNAL_SERVER_ERROR)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return problem(status, "the request failed", "The server's log says why.")
    if name == "DiskFull":
        return problem(status, "the server's disk is full; nothing was changed", "Its operator must make room.")
    kind = "/problems/" + re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
    return problem(status, error.message, error.remedy, kind=kind)
