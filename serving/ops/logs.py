"""Log lines: one JSON object for programs, or a short line for people, written from a thread."""

from __future__ import annotations

import atexit
import json
import logging
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any

PICTURES = ("/v1/thumbnails/", "page/upload")  # routes
NOISY = ("httpx", "httpcore", "asyncio", "faiss")  # loggers


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


class TextFormatter(logging.Formatter):
    """Formatter of log records as short lines for people: "14:03:22  POST /v1/search  200  35 ms  shop"."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line, followed by its traceback if it has one."""
        time = f"{datetime.fromtimestamp(record.created):%H:%M:%S}"
        facts = getattr(record, "facts", None)
        if facts is None:
            level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
            line = f"{time}  {level}{record.getMessage()}"
        else:
            route = f"{facts['method']} {facts['route']}" if facts["route"].startswith("/") else facts["route"]
            line = f"{time}  {route}  {facts['status']}  {facts['ms']:.0f} ms  {facts['key']}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def concerns_people(record: logging.LogRecord) -> bool:
    """Return whether to show a record in the terminal: thumbnails and uploads are hidden unless they fail."""
    facts = getattr(record, "facts", {})
    return facts.get("status", 500) >= 400 or not facts["route"].startswith(PICTURES)


class _Handler(QueueHandler):
    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # with its traceback, which the default turns into text of the message


def log_to_stderr(*, as_json: bool) -> None:
    """Write log records to stderr as lines of JSON or text, from a thread, so that requests do not wait for it."""
    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    writer = logging.StreamHandler()
    writer.setFormatter(JsonFormatter() if as_json else TextFormatter())
    if not as_json:
        writer.addFilter(concerns_people)
    listener = QueueListener(queue, writer)
    listener.start()
    atexit.register(listener.stop)
    logging.basicConfig(level=logging.INFO, handlers=[_Handler(queue)], force=True)
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
