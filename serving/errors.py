"""Errors of a server, beside those of a search. `serving.problems.STATUS` has the HTTP status of each.

RetrievalError
├── Busy                no room, or no answer before the deadline: try again
├── NotFound            a photo, item or answer that does not exist
├── PhotoChanged        the photo is not the one that the client saw
├── GalleryMismatch     the served bundle cannot add photos to this gallery
├── ReadOnly            the gallery cannot be changed from here
├── KeyFileError        the key file is missing or damaged
└── PartlyWritten       the disk became full on the way

The other errors are those of `retrieval.errors`.
"""

from __future__ import annotations

from retrieval.errors import RetrievalError

TRY_AGAIN = "Try again in a second"  # remedy


class Busy(RetrievalError):
    """The queue or the upload store is full, or a search passed its deadline."""


class NotFound(RetrievalError):
    """A photo, item or answer that does not exist."""


class PhotoChanged(RetrievalError):
    """A photo was changed since the client saw it, or is there although the request is to add a new one."""


class GalleryMismatch(RetrievalError):
    """The served bundle does not compute the local features that the gallery keeps."""


class ReadOnly(RetrievalError):
    """The gallery is in a folder that the server may not write to."""


class KeyFileError(RetrievalError):
    """The key file is missing or damaged."""


class PartlyWritten(RetrievalError):
    """The disk became full after a part of a table had been written."""
