"""Choose the operating point that serves: the gallery's if it was set with this bundle, else the bundle's."""

from __future__ import annotations

import json

from index.errors import GalleryCorrupt
from index.shell import command

from .bundle import Bundle
from .operating_point import OperatingPoint


def pack_point(point: OperatingPoint, bundle: Bundle) -> bytes:
    """Serialize an operating point with the id of the bundle it was set with."""
    return json.dumps({"bundle_id": bundle.bundle_id, "operating_point": point.to_dict()}).encode()


def stored_point(content: bytes | None, bundle: Bundle) -> OperatingPoint | None:
    """Return the operating point that a gallery keeps for this bundle, or None."""
    kept = read_point(content)
    return kept[1] if kept is not None and kept[0] == bundle.bundle_id else None


def read_point(content: bytes | None) -> tuple[str, OperatingPoint] | None:
    """Return the operating point that a gallery keeps and the id of the bundle it was set with, or None."""
    if content is None:
        return None
    try:
        values = json.loads(content)
        return str(values["bundle_id"]), OperatingPoint.from_dict(values["operating_point"])
    except (ValueError, KeyError, TypeError) as error:
        raise GalleryCorrupt(
            f"the gallery's operating point cannot be read: {error!r}",
            remedy=f"Set it again: `{command('calibrate', 'BUNDLE', 'GALLERY')}`",
        ) from error


def served_point(content: bytes | None, bundle: Bundle) -> OperatingPoint:
    """Return the operating point that serves, given the one that the gallery keeps."""
    return stored_point(content, bundle) or bundle.operating_point
