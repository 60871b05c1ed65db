"""What a call gives, as a text for tests/recorded: its result, its warnings, or its error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossamer.errors import GossamerWarning
from tests.recorded import as_text


def outcome(call: Callable[[], Any], folder: Path | None = None,
            text: Callable[[Any], str] = as_text) -> str:
    """Returns the text of a call's result, after the warnings that it gave; or the name and the
    message of its error.

    folder: a folder whose path the texts leave out, as it differs from run to run.
    text: a function that returns the text of a result.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = text(call())
        except Exception as error:
            found = f"{type(error).__name__} {error}"
    told = [f"[{warning.message}] " for warning in caught
            if issubclass(warning.category, GossamerWarning)]
    whole = "".join([*told, found])
    return whole if folder is None else whole.replace(f"{folder}/", "").replace(str(folder), "DIR")
