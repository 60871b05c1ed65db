"""Maps the name of every op to its declaration."""

from importlib import import_module

from gossamer.ops.op import Op

_NAMES = ("backprop", "batch_norm", "batch_statistics", "concat", "conv2d", "conv_transpose2d",
          "copy", "elementwise", "gather", "gemm", "im2col", "matmul", "normalise", "onnx_part",
          "pad", "part", "pool", "reduce", "region", "resize", "softmax")

OPS: dict[str, Op] = {name: import_module(f"gossamer.ops.{name}").OP for name in _NAMES}

__all__ = ["OPS", "Op"]
