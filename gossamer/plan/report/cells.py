"""The cells of a report's tables as text, for the terminal and the HTML page.

A table consists of a dict of headings and a list of rows, which are dicts with the same keys. Rows
of candidates and plans have a further key, "is_taken", which is not shown as a column: it is "yes"
if the candidate or plan was taken, and "" otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.io.text import duration_text, range_text, share_text

Table = tuple[dict[str, str], list[dict[str, str]]]

_LAYERS = {
    "layer": "layer", "problem": "problem", "density": "density", "algorithm": "algorithm",
    "config": "config", "time": "time", "share": "%", "spread": "quartiles",
    "dense": "dense time", "speedup": "speed-up", "why": "why below 1",
    "break_even": "zeros win below", "error": "error"}
_CANDIDATES = {
    "algorithm": "algorithm", "config": "config", "time": "time", "spread": "quartiles",
    "error": "error", "layouts": "layouts", "precision": "precision",
    "reason": "outcome"}
_MOST_PARTS = 8
"""Maximum number of layers of a fusion that are all listed."""
_PLANS = {"plan": "plan", "time": "end to end", "spread": "quartiles", "outcome": "outcome"}


def layer_table(layers: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of a report's layers.

    The columns "why below 1" (why a layer is slower than with the best dense algorithm) and "zeros
    win below" (the estimated density below which skipping zeros is faster) are left out if they are
    empty.
    """
    rows = [{"layer": _shortened(row["layer"]), "problem": _shortened(row["problem"]),
             "config": row["config"],
             "density": share(row["density"]), "algorithm": with_precision(row),
             "dense": row_time_text(row, "best_dense_us"),
             "speedup": "" if row.get("speedup") is None else f"{row['speedup']:.2f}",
             "why": row.get("speedup_reason") or "", "break_even": share(row.get("break_even")),
             **_measured(row), "time": row_time_text(row),
             "share": "" if "share" not in row else f"{100 * row['share']:.1f}"} for row in layers]
    return {key: heading for key, heading in _LAYERS.items()
            if key not in ("why", "break_even") or any(row[key] for row in rows)}, rows


def _shortened(text: str) -> str:
    """Return the text of a fusion with only the first and the last of many parts."""
    parts = text.split(" + ")
    if len(parts) <= _MOST_PARTS:
        return text
    return " + ".join([parts[0], f"{len(parts) - 2} more", parts[-1]])


def candidate_table(row: Mapping[str, Any]) -> Table:
    """Return a layer's candidate table, in by_time() order."""
    return _CANDIDATES, [
        {"algorithm": candidate["algorithm"], "config": candidate["config"],
         "layouts": " ".join(candidate["layouts"]), "precision": candidate["precision"],
         "reason": candidate["reason"],
         "is_taken": "yes" if candidate["reason"] == "taken" else "",
         **_measured(candidate)} for candidate in by_time(row)]


def plan_table(plans: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of plans that were compared."""
    return _PLANS, [{"plan": plan["plan"], "time": time_text(plan["median_us"]),
                     "spread": quartiles_text(plan), "outcome": plan["outcome"],
                     "is_taken": "yes" if plan["is_taken"] else ""}
                    for plan in plans]


def by_time(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row's candidates, fastest first.

    Candidates without a time are last.
    """
    return sorted(row.get("candidates", []),
                  key=lambda candidate: (candidate["median_us"] is None,
                                         candidate["median_us"] or 0.0))


def with_precision(row: Mapping[str, Any]) -> str:
    """Return the algorithm's name, and its precision if it is not float32."""
    return row["algorithm"] + ("" if row["precision"] == "fp32" else f" {row['precision']}")


def rejected(row: Mapping[str, Any]) -> dict[str, str]:
    """Return why algorithms without candidates were not taken, by the algorithms' names."""
    named = {candidate["algorithm"] for candidate in row.get("candidates", ())}
    return {name: reason for name, reason in row["rejected"].items() if name not in named}


def row_time_text(row: Mapping[str, Any], key: str = "median_us") -> str:
    """Return a time of a row with its unit; "" if it is not known."""
    value = row.get(key)
    if value is None:
        return ""
    return duration_text(value) if row["config"] == "in place" else layer_time_text(value)


def layer_time_text(us: float) -> str:
    """Return the time of a layer with its unit.

    Times below 0.05 us are shown as "< 1 us": ONNX Runtime's profile has whole microseconds, so its
    0 may be any time below 1 us.
    """
    return "< 1 us" if us < 0.05 else duration_text(us)


def time_text(value: float | None) -> str:
    """Return a time in microseconds with its unit; "" for None."""
    return "" if value is None else duration_text(value)


def quartiles_text(times: Mapping[str, Any]) -> str:
    """Return quartiles as text; "" if they are not known."""
    low, high = times.get("p25_us"), times.get("p75_us")
    return "" if low is None or high is None else range_text(low, high)


def share(value: float | None) -> str:
    """Return a share as text; "" for None."""
    return "" if value is None else share_text(value)


def _measured(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells that rows of layers and rows of candidates both have."""
    error = row.get("error")
    return {"time": time_text(row.get("median_us")), "spread": quartiles_text(row),
            "error": "" if error is None else f"{error:.0e}"}
