"""The page of the backend tests' outcomes, docs/onnx-tests.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

import onnx
import onnxruntime

from tests.onnx_backend.run import PASSED

Outcomes = Mapping[str, tuple[str, str]]
"""The outcomes of each test with gossamer and with ONNX Runtime, by the name of the test."""

_NO_ARRAYS = ("8-bit floats, 2-bit or 4-bit numbers or bfloat16, of which ONNX Runtime, which "
              "computes it on the host, neither takes nor gives arrays")
_REASONS = (
    ("does not compute it either: NOT_IMPLEMENTED", "ONNX Runtime, which would compute it on the "
     "host, has no implementation of the operator in this dtype or version"),
    ("does not compute it either", "ONNX Runtime, which would compute it on the host, refuses it"),
    ("of domain", "gossamer computes no operator of this domain, and ONNX Runtime has none"),
    ("converted to MLDataType", _NO_ARRAYS),
    ("No corresponding Numpy type", _NO_ARRAYS),
    ("ONNX Runtime: ", "ONNX Runtime, which computes it on the host, fails at the values"),
    ("ONNX Runtime returned an output of shape", "ONNX Runtime, which computes it on the host, "
     "makes another shape than the standard says"),
    ("is declared as", "the file declares another dtype than gossamer makes, which has no "
     "8-bit floats"),
    ("wrong: ", "other numbers than expected"),
)


def page(groups: Mapping[str, Outcomes], device: str) -> str:
    """Return the page.

    groups: the outcomes by what was done to the tests.
    """
    lines = _wrapped(
        f"Backend tests of onnx {onnx.__version__} that need no download, run by gossamer on "
        f"`{device}` and by ONNX Runtime {onnxruntime.__version__} of the same installation: as "
        "they are, and with every input but the first as a constant. What gossamer has no "
        "algorithm for ONNX Runtime computes on the host, on whichever device the rest runs. "
        "`make backend-tests` runs them, `python -m tests.onnx_backend --draw FILE.md` makes this "
        "page.")
    lines = ["# ONNX's backend tests", "", *lines, "",
             "| tests | | gossamer passes | ONNX Runtime passes | ONNX Runtime alone |",
             "| --- | --- | --- | --- | --- |"]
    for title, outcomes in groups.items():
        pairs = [(ours == PASSED, theirs == PASSED) for ours, theirs in outcomes.values()]
        lines.append(f"| {title} | {len(pairs)} | {sum(ours for ours, _ in pairs)} | "
                     f"{sum(theirs for _, theirs in pairs)} | "
                     f"{sum(theirs and not ours for ours, theirs in pairs)} |")
    lines += ["", "## What gossamer does not pass", ""]
    failed: dict[str, dict[str, None]] = {}
    for outcomes in groups.values():
        for name, (ours, theirs) in outcomes.items():
            if ours != PASSED:
                failed.setdefault(_reason(ours, theirs), {})[name.removeprefix("test_")] = None
    for reason, names in sorted(failed.items(), key=lambda item: -len(item[1])):
        lines += _wrapped(f"- {reason} ({len(names)}): {', '.join(names)}.", "  ")
    return "\n".join(lines) + "\n"


def _reason(ours: str, theirs: str) -> str:
    """Return why gossamer does not pass a test, and whether ONNX Runtime does."""
    why = next((text for part, text in _REASONS if part in ours),
               re.sub(r"^refused: ", "", ours))
    return f"{why}{'; ONNX Runtime passes' if theirs == PASSED else ''}"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, 100, subsequent_indent=indent, break_on_hyphens=False,
                         break_long_words=False)
