"""The log of a server on standard error, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

FORMATS = ("text", "json")
_REQUEST = ("client", "method", "path", "http_version", "status")
"""The fields of a request, in the order in which uvicorn logs them."""

logger = logging.getLogger("gossamer.serve")


class _Json(logging.Formatter):
    """Writes a message as one line of JSON."""

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
    """Write the log, and warnings, while the body of the with statement runs.

    form: one of FORMATS.
    requests: whether each request is written.
    """
    handler = logging.StreamHandler(sys.stderr)
    formatter = _Json() if form == "json" else logging.Formatter(
        "%(asctime)s %(levelname)s %(name)s: %(message)s")
    formatter.default_msec_format = "%s.%03d"
    handler.setFormatter(formatter)
    # uvicorn writes of a request that is no HTTP, which anybody can send, at the level WARNING
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
