"""Local features of several photos as one npz, for the calibration photos of a bundle and the queries of a gallery.

The npz holds the photo ids (n,), the number of bytes of each photo's features (n,), and all features (bytes,).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from zipfile import BadZipFile

import numpy as np

from index.files import load_arrays
from retrieval.errors import BundleCorrupt


def pack_features(features: Mapping[str, bytes]) -> bytes:
    """Return the features of photos, by photo id, as npz."""
    file = io.BytesIO()
    np.savez(
        file,
        photo_id=np.array(list(features), dtype=str),
        size=np.array([len(content) for content in features.values()], dtype=np.int64),
        content=np.frombuffer(b"".join(features.values()), dtype=np.uint8),
    )
    return file.getvalue()


def unpack_features(data: bytes) -> dict[str, bytes]:
    """Return the features of photos from the output of `pack_features`; raise BundleCorrupt if it cannot be read."""
    try:
        arrays = load_arrays(data)
        content, stops = arrays["content"].tobytes(), np.cumsum(arrays["size"])
        starts = stops - arrays["size"]
        if (arrays["size"] < 0).any() or (len(stops) and stops[-1] != len(content)):
            raise ValueError("the sizes do not add up")
        parts = [content[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        return dict(zip(arrays["photo_id"].tolist(), parts, strict=True))
    except (KeyError, ValueError, TypeError, OSError, EOFError, BadZipFile) as error:
        raise BundleCorrupt(
            f"the local features of photos cannot be read: {error}", remedy="Export the bundle again"
        ) from error
