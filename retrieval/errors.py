"""The public name of the exception tree, which `index.errors` draws."""

from index.errors import (
    BundleCorrupt,
    BundleError,
    BundleMismatch,
    CalibrationError,
    DataError,
    GalleryCorrupt,
    GalleryError,
    GalleryLocked,
    ImageRefused,
    ImageTooLarge,
    ImageUnreadable,
    ImageUnsupported,
    InvalidParameter,
    MissingDependency,
    RetrievalError,
    RunError,
)

__all__ = [
    "BundleCorrupt",
    "BundleError",
    "BundleMismatch",
    "CalibrationError",
    "DataError",
    "GalleryCorrupt",
    "GalleryError",
    "GalleryLocked",
    "ImageRefused",
    "ImageTooLarge",
    "ImageUnreadable",
    "ImageUnsupported",
    "InvalidParameter",
    "MissingDependency",
    "RetrievalError",
    "RunError",
]
