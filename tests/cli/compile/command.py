"""Call the verb `compile` from tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def compile_(run: Run, network: Path, *words: Any, code: int = 0) -> Any:
    """Compile a network, which must end with a status."""
    result = run("compile", network, "--device", "host", "--effort", "quick", *words)
    assert result.exit_code == code, result.output
    return result
