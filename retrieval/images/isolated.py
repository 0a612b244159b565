"""Decoding of AVIF, HEIC, TIFF, GIF and BMP in a process of its own, whose CPU time and memory are limited.

Files of these formats can cost far more than their size, in ways that only their decoders know. A decoder runs in a
child process: a timer of its CPU time ends it after CPU_S per photo, and its address space grows by at most MEMORY. The
child is kept for the next photo, one for each thread that decodes at the same time; starting one takes about 0.2 s.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from PIL import AvifImagePlugin, Image

from retrieval.errors import (
    ImageRefused,
    ImageTooLarge,
    ImageUnreadable,
    ImageUnsupported,
    MissingDependency,
    importing,
)

from .formats import FORMATS, Format
from .guards import ORIENTATION
from .pixels import FULL_SIZE, check_shape, decoded, fitted, full_size, turned

CPU_S = 1.7  # per photo
MEMORY = 900 * 2**20  # bytes above those that the child has when it starts
ROWS = 256  # of pixels sent at once
REFUSALS = {kind.__name__: kind for kind in (ImageUnreadable, ImageTooLarge, ImageUnsupported)}
REQUEST = struct.Struct("<IIId")  # format, orientation, bytes and CPU time
SIZES = struct.Struct("<IIII")  # width and height, and those at full size; or 0 and the bytes of a refusal
without_heif: list[MissingDependency] = []  # in the child: why HEIC photos cannot be read


def open_isolated(data: bytes, form: Format, orientation: int = 0) -> Image.Image:
    """Return the upright RGB image in a file, by the EXIF orientation that it states, or another one.

    Raises ImageUnreadable, ImageTooLarge or ImageUnsupported if it cannot be used or costs too much.
    """
    try:
        while (child := _IDLE.get_nowait()).poll() is not None:  # such as for lack of memory
            _stopped(child)
    except Empty:
        child = _started()
    try:
        image = _exchanged(child, REQUEST.pack(FORMATS.index(form), orientation, len(data), CPU_S), data)
    except (OSError, struct.error, ValueError) as error:
        if _stopped(child) == -signal.SIGPROF:
            raise ImageTooLarge(
                f"decoding the {form.shown} image takes more than {CPU_S:g} s of CPU",
                remedy="Convert it to JPEG or PNG",
            ) from error
        raise ImageUnreadable(
            f"decoding the {form.shown} image crashed the decoder process", remedy="Convert it to JPEG or PNG"
        ) from error
    except ImageRefused:
        _IDLE.put(child)
        raise
    except BaseException:  # interrupted: the rest of the answer is still to come
        _stopped(child)
        raise
    _IDLE.put(child)
    return image


_IDLE: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()


def _started() -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(sys.path)
    return subprocess.Popen(  # noqa: S603 (this module)
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # warnings of Pillow
        start_new_session=True,  # Ctrl-C stops the server, and its decoders when it has answered
        env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )


@atexit.register
def _end() -> None:
    """End the idle children."""
    with suppress(Empty):
        while True:
            _stopped(_IDLE.get_nowait())


def _stopped(child: subprocess.Popen[bytes]) -> int:
    """End a child, and return the status or signal that it ended with."""
    child.kill()
    with suppress(OSError), child:  # closes its pipes
        pass
    return child.wait()


def _forget() -> None:
    """Leave the children to the process that started them."""
    global _IDLE  # noqa: PLW0603 (a fork has its own)
    _IDLE = SimpleQueue()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _exchanged(child: subprocess.Popen[bytes], *request: bytes) -> Image.Image:
    requests, answer = child.stdin, child.stdout
    if requests is None or answer is None:
        raise OSError("the decoder has no pipes")
    requests.writelines(request)
    requests.flush()
    width, height, *full_size = SIZES.unpack(answer.read(SIZES.size))
    if not width:
        kind, message, remedy = json.loads(answer.read(height))
        raise REFUSALS[kind](message, remedy=remedy)
    image = Image.new("RGB", (width, height))
    for top in range(0, height, ROWS):
        size = (width, min(ROWS, height - top))
        image.paste(Image.frombytes("RGB", size, answer.read(3 * width * size[1])), (0, top))
    image.info[FULL_SIZE] = tuple(full_size)
    return image


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    import resource

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # systemd sends it to all processes of a service

    try:
        with importing("pillow_heif", "sources"):
            import pillow_heif
    except MissingDependency as error:  # a HEIC is then refused
        without_heif.append(error)
    else:
        pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    Image.init()
    with suppress(OSError):  # not on macOS, which has no such limit
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while header := requests.read(REQUEST.size):
        number, orientation, size, seconds = REQUEST.unpack(header)
        data = requests.read(size)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
        try:
            image = decoded(partial(_opened, data, FORMATS[number], orientation))
        except ImageRefused as refusal:
            text = json.dumps((type(refusal).__name__, refusal.message, refusal.remedy)).encode()
            answers.write(SIZES.pack(0, len(text), 0, 0) + text)
        else:
            answers.write(SIZES.pack(*image.size, *full_size(image)))
            for top in range(0, image.height, ROWS):
                answers.write(image.crop((0, top, image.width, min(top + ROWS, image.height))).tobytes())
        answers.flush()


def _opened(data: bytes, form: Format, orientation: int) -> Image.Image:
    if form.name == "HEIF" and without_heif:
        (why,) = without_heif
        raise ImageUnsupported(f"HEIC photos need the package pillow_heif: {why.message}", remedy=why.remedy)
    with Image.OPEN[form.name][0](io.BytesIO(data), "") as image:
        check_shape(image)
        image.load()
        return turned(fitted(image), orientation or image.getexif().get(ORIENTATION, 1))


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
