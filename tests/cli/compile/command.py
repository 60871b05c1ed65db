"""Calls the verb `compile` from tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def compile_(run: Run, network: Path, *words: Any) -> Any:
    return run("compile", network, "--device", "host", "--effort", "quick", *words)
