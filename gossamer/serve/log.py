"""The log of a server, as text or JSON."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

FORMATS = ("text", "json")
_REQUEST = ("client", "method", "path", "http_version", "status")
"""Fields of a request's log line, in uvicorn's order."""

logger = logging.getLogger("gossamer.serve")


class _Json(logging.Formatter):
    """Formats a message as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": self.formatTime(record), "level": record.levelname.lower(),
            "logger": record.name, "message": record.getMessage()}
        if record.name == "uvicorn.access" and isinstance(record.args, tuple):
            fields |= zip(_REQUEST, record.args, strict=False)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


@contextmanager
def written(form: str, *, requests: bool) -> Iterator[None]:
    """Write the log during a `with` block, including warnings.

    form: one of FORMATS.
    requests: whether to write a line for each request.
    """
    handler = logging.StreamHandler(sys.stderr)
    formatter = _Json() if form == "json" else logging.Formatter(
        "%(asctime)s %(levelname)s %(name)s: %(message)s")
    formatter.default_msec_format = "%s.%03d"
    handler.setFormatter(formatter)
    # at WARNING, uvicorn logs each invalid HTTP request, and anybody can send many of them
    levels = {"gossamer": logging.INFO, "uvicorn.error": logging.ERROR,
              "uvicorn.access": logging.INFO if requests else logging.WARNING}
    before = {name: logging.getLogger(name).level for name in levels}
    shown = warnings.showwarning
    logging.getLogger().addHandler(handler)
    try:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        warnings.showwarning = lambda message, *_, **__: logger.warning("%s", message)
        yield
    finally:
        warnings.showwarning = shown
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
        logging.getLogger().removeHandler(handler)
