"""HashedOnce: a base class of frozen dataclasses that are keys of many look-ups."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any


class HashedOnce:
    """A base class of frozen dataclasses whose hash is computed once and kept.

    A pickle has neither the hash nor cached properties: strings have other hashes in another
    process.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # the decorator dataclass replaces an inherited __hash__, but not one of the class itself
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
