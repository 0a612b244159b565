"""Photos of a data set with frozen vectors and local features, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.images import open_image
from retrieval.verification.detector import detect
from retrieval.verification.features import LocalFeatures
from retrieval.verification.settings import VerifierSettings
from retrieval.verification.verifier import GeometricVerifier
from training.export.pretrained import Pretrained

from .pretrained import features_in

MODEL = "efficientnet-lite0"


@dataclass(frozen=True)
class Photos:
    """Photos of a data set: unit vectors (n, d), items, and local features, packed once a verifier describes them."""

    photos: Sequence[Photo]
    vectors: np.ndarray
    local: Sequence[LocalFeatures]
    packed: Sequence[bytes] = ()

    @property
    def items(self) -> np.ndarray:
        """The item of each photo."""
        return np.array([photo.item_id for photo in self.photos])

    def where(self, chosen: np.ndarray) -> Photos:
        """Return the photos of a mask (n,)."""
        rows = np.flatnonzero(chosen).tolist()
        return Photos(
            [self.photos[row] for row in rows],
            self.vectors[rows],
            [self.local[row] for row in rows],
            [self.packed[row] for row in rows] if self.packed else (),
        )

    def described(self, verifier: GeometricVerifier) -> Photos:
        """Return the photos with packed features that have visual words."""
        return replace(self, packed=[verifier.packed(features) for features in self.local])

    @classmethod
    def joined(cls, one: Photos, other: Photos) -> Photos:
        """Return the photos of both."""
        vectors = np.concatenate([one.vectors, other.vectors])
        return cls([*one.photos, *other.photos], vectors, [*one.local, *other.local], [*one.packed, *other.packed])

    def partition(self, *names: str) -> np.ndarray:
        """Return the mask (n,) of the photos of some partitions."""
        return np.array([photo.partition in names for photo in self.photos])

    def source(self, name: str) -> np.ndarray:
        """Return the mask (n,) of the photos of a source."""
        return np.array([photo.source == name for photo in self.photos])


def load(name: str, data: Path, output: Path) -> Photos:
    """Return the photos of a data set, without the catalogue pictures of grocery."""
    photos = read_catalogue(data / "data" / name / f"{name}.csv")
    features = features_in(output / f"{name}.npy", Pretrained.load(MODEL), photos)
    vectors = features / np.linalg.norm(features, axis=1, keepdims=True)
    chosen = [row for row, photo in enumerate(photos) if photo.source != "iconic"]
    kept = [photos[row] for row in chosen]
    return Photos(kept, vectors[chosen].astype(np.float32), _local(kept, output / f"{name}-local.npz"))


def _local(photos: Sequence[Photo], path: Path) -> list[LocalFeatures]:
    """Return the local features of photos with the default settings, from a file if it exists."""
    if not path.exists():
        packed = [detect(open_image(photo.path), VerifierSettings()).pack() for photo in tqdm(photos, desc=path.stem)]
        np.savez(path, packed=np.frombuffer(b"".join(packed), np.uint8), ends=np.cumsum([len(each) for each in packed]))
    with np.load(path, allow_pickle=False) as file:
        data, ends = file["packed"].tobytes(), file["ends"].tolist()
    return [LocalFeatures.unpack(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
