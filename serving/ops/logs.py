"""JSON-lines logging to stderr. A thread formats and writes the lines, so that requests do not wait for it."""

from __future__ import annotations

import atexit
import json
import logging
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any

NOISY = ("httpx", "httpcore", "gradio", "asyncio", "faiss")  # loggers


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


class _Handler(QueueHandler):
    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # with its traceback, which the default turns into text of the message


def log_to_stderr() -> None:
    """Write all log records to stderr as JSON lines."""
    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    writer = logging.StreamHandler()
    writer.setFormatter(JsonFormatter())
    listener = QueueListener(queue, writer)
    listener.start()
    atexit.register(listener.stop)
    logging.basicConfig(level=logging.INFO, handlers=[_Handler(queue)], force=True)
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
