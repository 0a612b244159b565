"""RFC 9457 problem documents: one HTTP status per leaf of the exception tree."""

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
    "NoSuchThing": HTTPStatus.NOT_FOUND,
    "GalleryMismatch": HTTPStatus.CONFLICT,
    "PruneRefused": HTTPStatus.CONFLICT,
    # temporary conditions
    "Busy": HTTPStatus.SERVICE_UNAVAILABLE,
    "GalleryLocked": HTTPStatus.SERVICE_UNAVAILABLE,
    # server errors: details go to the log, not to the client
    "BundleCorrupt": HTTPStatus.INTERNAL_SERVER_ERROR,
    "BundleMismatch": HTTPStatus.INTERNAL_SERVER_ERROR,
    "CalibrationError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "DataError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "DetectorError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "GalleryCorrupt": HTTPStatus.INTERNAL_SERVER_ERROR,
    "KeyFileError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "MissingDependency": HTTPStatus.INTERNAL_SERVER_ERROR,
    "RunError": HTTPStatus.INTERNAL_SERVER_ERROR,
}
HEADERS: dict[int, dict[str, str]] = {
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": "1"},
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: {"Connection": "close"},  # the rest of the body is not read
}
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
        return problem(status, "the search failed", "The server's log says why.")
    kind = "/problems/" + re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
    return problem(status, error.message, error.remedy, kind=kind)
