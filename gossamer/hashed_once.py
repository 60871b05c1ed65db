"""HashedOnce: a base class that caches the hashes of frozen dataclasses."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any


class HashedOnce:
    """A base class for frozen dataclasses that are often used as keys.

    The hash is computed once per object. Pickles contain the fields but not the hash, because the
    hashes of strings differ between processes.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # @dataclass replaces an inherited __hash__, but keeps one defined by the class itself
        cls.__hash__ = HashedOnce.__hash__  # type: ignore[method-assign]

    def __hash__(self) -> int:
        kept: int | None = self.__dict__.get("_hash")
        if kept is None:
            cls: Any = type(self)
            kept = self.__dict__["_hash"] = hash(
                tuple([getattr(self, name) for name in _field_names(cls)]))
        return kept

    def __getstate__(self) -> dict[str, Any]:
        cls: Any = type(self)
        return {name: getattr(self, name) for name in _field_names(cls)}


@cache
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))
