"""Signatures of key points: bits that show how close two descriptors of a visual word are (Hamming embedding).

A descriptor and the centre of its word are projected on Walsh functions (sums and differences of their numbers). Each
bit of the signature says whether one projection of the descriptor is greater than that of the centre.
Jegou, Douze, Schmid: Hamming embedding and weak geometric consistency for large scale image search. ECCV 2008.
Shapes: k descriptors, w words, a words per descriptor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.search.verified import BITS
from retrieval.errors import InvalidParameter

from .features import LENGTH

_NUMBERS = np.arange(LENGTH)
_ODD = np.bitwise_count(_NUMBERS[:, None] & _NUMBERS[1 : BITS + 1]) % 2
_WALSH = np.where(_ODD, -1, 1).astype(np.float32)  # (128, BITS)


@dataclass(frozen=True)
class SignatureSettings:
    """Parameters of votes by signatures."""

    asked: int = 3  # number of nearest visual words that a key point of a query votes with
    bits: int = 16  # maximum number of bits in which the signatures of two key points differ
    scale: float = 10.0  # bits; a vote with h differing bits counts exp(-(h / scale)^2)

    def __post_init__(self) -> None:
        if not 1 <= self.asked <= 8:
            raise InvalidParameter("asked", "lie between 1 and 8", self.asked)
        if not 0 <= self.bits <= BITS:
            raise InvalidParameter("bits", f"lie between 0 and {BITS}", self.bits)
        if not 0.1 <= self.scale <= 1000:
            raise InvalidParameter("scale", "lie between 0.1 and 1,000", self.scale)

    def agreement(self) -> NDArray[np.float32]:
        """Return the factor of a vote (BITS + 1,) by the number of bits in which two signatures differ."""
        differing = np.arange(BITS + 1)
        factors = np.where(differing <= self.bits, np.exp(-((differing / self.scale) ** 2)), 0.0)
        return np.asarray(factors, dtype=np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SignatureSettings:
        """Create settings from the output of `to_dict`."""
        return cls(int(values["asked"]), int(values["bits"]), float(values["scale"]))


def projected(descriptors: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the projections (k, BITS) of descriptors (k, 128), which are exact in float32."""
    return descriptors.astype(np.float32) @ _WALSH


def signatures_of(projections: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Return the signatures (k, a) of projected descriptors (k, BITS), compared with projected centres (k, a, BITS)."""
    packed = np.packbits(projections[:, None] > centres, axis=2)
    return packed.view("<u8")[..., 0].astype(np.uint64)
