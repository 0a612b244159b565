"""JSON-lines logging, written in batches: a write for each request would release the GIL."""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any, TextIO

EVERY_S = 0.2


class JsonFormatter(logging.Formatter):
    """Formatter of log records as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class BatchedHandler(logging.Handler):
    """Handler that writes lines in batches; warnings and the remaining lines at exit are written at once."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._stream, self._waiting = stream, deque[str]()
        self._ended, self._writing = threading.Event(), threading.Lock()
        threading.Thread(target=self._write_often, name="log", daemon=True).start()
        atexit.register(self.close)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; write at once from WARNING on."""
        self._waiting.append(self.format(record) + "\n")
        if record.levelno >= logging.WARNING:
            self.flush()

    def flush(self) -> None:
        """Write the queued lines."""
        with self._writing:
            lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if lines:
                self._stream.write("".join(lines))
                self._stream.flush()

    def close(self) -> None:
        """Stop the writer thread and write the remaining lines."""
        self._ended.set()
        self.flush()
        super().close()

    def _write_often(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.flush()
