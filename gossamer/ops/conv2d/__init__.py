"""2-D convolution."""

from typing import Any


def __getattr__(name: str) -> Any:
    # importing the algorithms is slow, and much code needs only the problem
    if name != "OP":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gossamer.ops.conv2d.op import OP

    return OP
