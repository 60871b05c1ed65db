"""The ops by name. An op's module is imported when the op is first used."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

from gossamer.ops.op import Op

_NAMES = ("backprop", "batch_norm", "concat", "conv2d", "conv_transpose2d", "copy", "elementwise",
          "gather", "gemm", "layer_norm", "matmul", "onnx_part", "pad", "part", "pool", "reduce",
          "fused", "resize", "softmax", "top_k")


class _Ops(MutableMapping[str, Op]):
    """A mapping from names to ops that imports ops lazily."""

    def __init__(self) -> None:
        self._known: dict[str, Op | None] = dict.fromkeys(_NAMES)

    def __getitem__(self, name: str) -> Op:
        op = self._known[name]
        if op is None:
            op = self._known[name] = import_module(f"gossamer.ops.{name}").OP
        return op

    def __setitem__(self, name: str, op: Op) -> None:
        self._known[name] = op

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


OPS: MutableMapping[str, Op] = _Ops()

__all__ = ["OPS", "Op"]
