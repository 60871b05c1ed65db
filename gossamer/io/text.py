"""Counts, sizes, times, shapes and shares as human-readable text."""

from __future__ import annotations

from collections.abc import Iterable


def human(count: float) -> str:
    """Return a count as text; from 1,000 on with at most three digits and an SI prefix: 3.5 M."""
    rounded = float(f"{count:.3g}")
    for size, unit in ((1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"),
                       (1e3, " k")):
        # the rounded count determines the prefix: 999,999 is 1 M
        if abs(rounded) >= size:
            return f"{rounded / size:g}{unit}"
    return f"{count:g}"


def bytes_text(count: int) -> str:
    """Return a number of bytes in binary units: 13.5 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if float(f"{value:.4g}") < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} EiB"


def duration_text(microseconds: float) -> str:
    """Return a time with its unit, such as 8.3 us, 1.50 ms and 12.3 s."""
    if round(microseconds, 1) < 1e3:
        return f"{microseconds:.1f} us"
    value, unit = microseconds / 1e3, "ms"
    if float(f"{value:.3g}") >= 1e3:
        value, unit = value / 1e3, "s"
    return f"{value:.0f} {unit}" if value >= 999.5 else f"{value:#.3g}".rstrip(".") + f" {unit}"


def range_text(low: float, high: float) -> str:
    """Return a range of times in microseconds, such as 8.3 to 9.1 us."""
    (start, start_unit), (end, end_unit) = (duration_text(each).split() for each in (low, high))
    return f"{start}{'' if start_unit == end_unit else f' {start_unit}'} to {end} {end_unit}"


def shape_text(shape: Iterable[int | str | None]) -> str:
    """Return a shape such as 1x3x224x224, with N for a dynamic dimension."""
    return "x".join("N" if size is None else str(size) for size in shape) or "scalar"


def share_text(share: float) -> str:
    """Return a share from 0 to 1, such as a density, in percent.

    Only exactly 0 and 1 become 0% and 100%. Nearby shares are printed with one decimal (0.3%,
    99.2%), or as a bound if they would still be rounded to 0% or 100% (<0.1%, >99.9%).
    """
    if share in (0, 1):
        return f"{share:.0%}"
    if share < 5e-4:
        return "<0.1%"
    if share >= 1 - 5e-4:
        return ">99.9%"
    return f"{share:.0%}" if 0.01 <= share <= 0.99 else f"{share:.1%}"
