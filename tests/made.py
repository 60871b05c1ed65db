"""The objects that are made while a test runs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


def made(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Any]:
    """Returns a list to which all objects are added that a module makes afterwards of the class
    that it knows by a name."""
    found: list[Any] = []
    make = getattr(module, name)

    def noted(*arguments: Any, **options: Any) -> Any:
        found.append(make(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(module, name, noted)
    return found
