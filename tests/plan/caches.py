"""Caches that end with what they are for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from unittest.mock import patch


@contextmanager
def empty_cache() -> Iterator[None]:
    """Lets what is measured meanwhile be kept in a new folder, which is removed afterwards."""
    with TemporaryDirectory() as cache, patch.dict(os.environ, GOSSAMER_CACHE=cache):
        yield
