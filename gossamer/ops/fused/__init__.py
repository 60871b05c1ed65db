"""Several layers that one algorithm computes in one step."""

from typing import Any


def __getattr__(name: str) -> Any:
    # much code needs the problem, and not the algorithms, whose import takes long
    if name != "OP":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gossamer.ops.fused.op import OP

    return OP
