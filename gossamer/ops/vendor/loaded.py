"""Vendor libraries that are loaded once, by the first thread that asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Library = TypeVar("Library")


class Loaded(Generic[Library]):
    """Maps each key, such as a device, to a library, or to the reason why the library cannot be
    used. Only one thread at a time loads a library; other threads that ask for the library wait
    until it is loaded."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Library | str] = {}
        self._lock = threading.Lock()

    def of(self, key: Hashable, load: Callable[[], Library | str]) -> Library | str:
        """Returns the library of a key, or the reason why the library cannot be used. The first
        call with a key loads the library."""
        known = self._known.get(key)
        if known is not None:
            return known
        with self._lock:
            if key not in self._known:
                self._known[key] = load()
            return self._known[key]
