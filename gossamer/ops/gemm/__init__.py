"""Matrix products with constant weights."""

from typing import Any


def __getattr__(name: str) -> Any:
    # imported on first use: the algorithms take long to import, and most code needs only the
    # problem
    if name != "OP":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gossamer.ops.gemm.op import OP

    return OP
