"""Made-up result rows."""

from __future__ import annotations

import dataclasses

from gossamer.bench.rows import ResultRow


def row(contender: str, median: float, **values: object) -> ResultRow:
    """Returns a row with this median in microseconds and other values where they are given."""
    base = ResultRow("mobilenet", "mobilenetv2", contender, "cuda", "fp32", "NCHW", "a 1", 1,
                     median, median - 1, median + 1, 1e-6, 10.0, 1.0, "Chip", {},
                     "gossamer bench", "abc", "run", "2026-01-02T03:04:05+00:00")
    return dataclasses.replace(base, **values)  # type: ignore[arg-type]
