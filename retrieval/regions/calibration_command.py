"""The command that sets the threshold of searches by regions."""

from __future__ import annotations

from pathlib import Path

from index.shell import command


def calibration_command(bundle: Path | str, gallery: Path | str, detector: Path | str | None = None) -> str:
    """Return the command to run for regions "auto", or for those of a detector."""
    if detector is None:
        return command("calibrate", bundle, gallery, "--regions", "auto", "--queries", "PHOTOS")
    return command("calibrate", bundle, gallery, "--regions", "detector", "--detector", detector, "--queries", "PHOTOS")
