"""Exceptions of the project; each message says what is wrong and what to do.

RetrievalError
├── InvalidParameter          an argument or a setting is invalid
├── MissingDependency         an optional package is not installed
├── DataError                 a catalogue file, folder or column cannot be used
├── ImageRefused              a photo cannot be used
│   ├── ImageUnreadable       not an image, or a damaged one
│   ├── ImageTooLarge         too many bytes or pixels
│   └── ImageUnsupported      unsupported format, mode, shape or animation
├── RunError                  a training run is missing, unfinished or has other settings
├── CalibrationError          no threshold meets the target with these photos
├── BundleError               a bundle is missing, damaged or of another format
│   ├── BundleCorrupt         a file differs from the manifest
│   ├── BundleUntrusted       the bundle is not signed with a trusted key
│   └── BundleMismatch        bundle and gallery do not belong together
└── GalleryError              a gallery is missing or refuses a change
    ├── GalleryCorrupt        a file or a row fails its check
    └── GalleryLocked         another process is writing

The exceptions live in the lowest package because every package raises them; `retrieval.errors` is the public name.
"""

from __future__ import annotations

LONGEST_VALUE = 300  # characters of a value in a message


class RetrievalError(Exception):
    """What every refusal of this project derives from: `message` says what is wrong, `remedy` what to do."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(f"{message}. {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy


class InvalidParameter(RetrievalError, ValueError):
    """An argument or a setting breaks its rule; the message names parameter, rule and value."""

    def __init__(self, parameter: str, rule: str, value: object, *, remedy: str = "") -> None:
        super().__init__(f"{parameter} must {rule}, got {_shown(value)}", remedy=remedy)
        self.parameter = parameter


class MissingDependency(RetrievalError, ImportError):
    """An optional package is not installed."""

    @classmethod
    def of_extra(cls, package: str, extra: str) -> MissingDependency:
        """Return the error that says that a package is not installed, and which command installs it."""
        return cls(f"{package} is not installed", remedy=f"In the project's checkout: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra. The project is in no package index, so it is run in a checkout."""
    return f"pip install -c constraints.txt '.[{extra}]'"


def _shown(value: object) -> str:
    """Return a value as it is written in Python, cut where it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


class DataError(RetrievalError):
    """A catalogue file, a folder or its columns cannot be used."""


class ImageRefused(RetrievalError):
    """A photo cannot be used."""


class ImageUnreadable(ImageRefused):
    """Not an image, or a damaged one."""


class ImageTooLarge(ImageRefused):
    """Too many bytes or pixels."""


class ImageUnsupported(ImageRefused):
    """A format, mode, shape or animation that is not accepted."""


class RunError(RetrievalError):
    """A training run is missing, unfinished or of other settings."""


class CalibrationError(RetrievalError):
    """No threshold can keep the promise with these photos."""


class BundleError(RetrievalError):
    """A bundle is missing, damaged or of another format."""


class BundleCorrupt(BundleError):
    """A file is not what the manifest says."""


class BundleUntrusted(BundleError):
    """No key that is trusted signed it."""


class BundleMismatch(BundleError):
    """Bundle and gallery do not belong together."""


class GalleryError(RetrievalError):
    """A gallery is missing or refuses a change."""


class GalleryCorrupt(GalleryError):
    """A file or a row is not what was written."""


class GalleryLocked(GalleryError):
    """Another process is writing."""
