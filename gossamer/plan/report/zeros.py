"""Skipped zeros in the layers of a plan.

The report says in which layers zeros among weights are skipped, why they are not skipped in other
layers, and below which density skipping them would be faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.io.text import share_text
from gossamer.ops.algorithm import Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import counted
from gossamer.plan.program import Step

FEW_ZEROS = 0.9
"""If a layer's density is at most this value, a report has a line on the layer's zeros even if the
plan skips none. The value is a rule of thumb."""
_NOT_TRIED = "not tried: "
NOT_MEASURED = ("this plan has no times of algorithms; set an effort, or run `gossamer compile`, "
                "to compare them")

Row = Mapping[str, Any]
"""A row of a report."""


def zero_columns(step: Step) -> dict[str, Any]:
    """Return a row's columns about zeros among weights.

    kind: the layer's kind, such as '3x3 convolution'.
    best_sparse_us: time of the fastest candidate that skips zeros; None if no such candidate has a
    time.
    break_even: the density below which skipping zeros would be faster; see break_even().
    zeros_reason: why zeros are not skipped; "" if they are skipped, or if there are few.
    """
    best_sparse, best_dense = (min((
        candidate.cost for candidate in step.candidates if candidate.algorithm.dense is dense),
        default=math.inf) for dense in (False, True))
    density = step.layer.density
    return {
        "kind": _kind(step.problem),
        "best_sparse_us": best_sparse if math.isfinite(best_sparse) else None,
        "break_even": break_even(density, best_sparse, best_dense),
        "zeros_reason": "" if density is None or density > FEW_ZEROS or not step.algorithm.dense
        else _reason(step, best_sparse, best_dense),
    }


def break_even(density: float | None, sparse_us: float, dense_us: float) -> float | None:
    """Return the density below which skipping zeros would be faster.

    The estimate assumes that the time of the algorithm that skips zeros is proportional to the
    number of nonzeros. Part of the time does not depend on this number, so the true density is
    lower than the estimate if sparse_us > dense_us, and higher if sparse_us < dense_us. None if a
    time is not known.

    density: share of nonzero weights at which the algorithm that skips zeros took sparse_us
    microseconds.
    """
    if not density or not (0 < sparse_us < math.inf and 0 < dense_us < math.inf):
        return None
    return min(density * dense_us / sparse_us, 1.0)


def reason_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line with the reasons for each kind of layer whose zeros are not skipped."""
    kinds: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row.get("zeros_reason"):
            kinds.setdefault(row["kind"], {}).setdefault(row["zeros_reason"], []).append(row)
    return [f"zeros are not skipped in {kind}s: " + "; ".join(
        f"in {counted(len(group), 'layer')} {reason}{_comparison(group)}"
        for reason, group in reasons.items()) for kind, reasons in kinds.items()]


_SLOWER = "the best algorithm that skips them is no faster"
_FASTER = "an algorithm that skips them is faster alone, but slower in the plan"


def _reason(step: Step, sparse_us: float, dense_us: float) -> str:
    """Return why a layer with zeros is computed by a dense algorithm.

    The text has no numbers of this layer, so that layers with the same reason share one line.
    """
    if math.isfinite(sparse_us) and math.isfinite(dense_us):
        return _SLOWER if sparse_us >= dense_us else _FASTER
    names = {algorithm.name for algorithm in OPS[step.layer.op].algorithms if not algorithm.dense}
    reasons = {name: reason for name, reason in step.rejected.items() if name in names}
    if any(reason.startswith(_NOT_TRIED) for reason in reasons.values()):
        return "algorithms that skip them were not tried, because their estimates are slower"
    comes_later = any(reason.startswith("comes after ") for reason in reasons.values())
    if names and not step.candidates and (comes_later or not reasons):
        return NOT_MEASURED
    if names and not reasons:
        return "algorithms that skip them were not tried"
    texts: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        texts.setdefault(reason, []).append(name)
    return ", and ".join(f"{', '.join(named)} cannot ({reason})"
                         for reason, named in texts.items()) or "no algorithm skips them"


def _comparison(group: Sequence[Row]) -> str:
    """Return text with the ratios of sparse to dense times.

    A ratio is the fastest time of an algorithm that skips zeros, divided by the fastest dense time.
    "" if zeros are not skipped for another reason than the time.
    """
    ratios = [row["best_sparse_us"] / row["best_dense_us"] for row in group
              if row["zeros_reason"] == _SLOWER and row["best_dense_us"]]
    if not ratios:
        return ""
    text = (f": it takes {_span(f'{min(ratios):.3g}', f'{max(ratios):.3g}')} times as long as the "
            "best dense one")
    # layers whose weights are all zero have no break-even density
    if known := [row["break_even"] for row in group if row["break_even"]]:
        text += (", and is expected to win below a density of "
                 + _span(share_text(min(known)), share_text(max(known))))
    return text


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _kind(problem: Problem) -> str:
    """Return a layer's kind, such as '3x3 convolution'; adding an s makes the plural."""
    if not isinstance(problem, Conv2dProblem):
        return "product" if problem.op == "gemm" else "layer"
    size = "x".join(map(str, problem.kernel))
    grouped = "depthwise " if problem.is_depthwise else "grouped " if problem.groups > 1 else ""
    return f"{grouped}{size} convolution"
