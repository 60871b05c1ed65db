"""Compares MobileNetV2 with ONNX Runtime on random inputs and on real photos.

    python -m tests.plan.mobilenet_accuracy --inputs 100 --device host,opencl:0
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

import gossamer
from gossamer.model import zoo
from gossamer.model.onnx_writer import to_onnx
from gossamer.plan.plan import Plan
from tests.model.onnx_models import runtime
from tests.plan.photos import photos
from tests.tolerances import normalised_error

_AT_ONCE = 10


@dataclass(frozen=True)
class Comparison:
    """How two computations of the same inputs compare. error: the largest normalised error of an
    input. same_classes: inputs of which both have the same largest output, of `inputs`."""

    error: float
    same_classes: int
    inputs: int


def inputs(count: int) -> np.ndarray:
    """Returns as many inputs, one half normally distributed, the others crops of photos."""
    random = np.random.default_rng(4).standard_normal((count - count // 2, 3, 224, 224))
    return np.concatenate([random.astype(np.float32), photos("mobilenetv2", count // 2)])


def outputs_of_runtime(x: np.ndarray) -> np.ndarray:
    """Returns ONNX Runtime's outputs."""
    graph = zoo.build("mobilenet_v2")
    proto, name = to_onnx(graph), graph.inputs[0].name
    return np.concatenate([runtime(proto, {name: x[i:i + _AT_ONCE]})[0]
                           for i in range(0, len(x), _AT_ONCE)])


def compared(plan: Plan, x: np.ndarray, expected: np.ndarray) -> Comparison:
    """Returns how the outputs of a plan compare with the expected ones, one input at a time."""
    y = np.concatenate([plan(x[i:i + 1]) for i in range(len(x))])
    same = int((y.argmax(axis=1) == expected.argmax(axis=1)).sum())
    return Comparison(normalised_error(y, expected), same, len(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100)
    parser.add_argument("--device", default="host,opencl:0")
    parser.add_argument("--effort", default=None, help="by default nothing is measured")
    parser.add_argument("--only", default=None, help="an algorithm that is forced")
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()
    x = inputs(options.inputs)
    expected = outputs_of_runtime(x)
    for device in options.device.split(","):
        plan = gossamer.compile("mobilenet_v2", device, effort=options.effort, only=options.only,
                                precision=options.precision)
        plan(x[:1])
        steps = [step.variant.precision for step in plan.program(1).steps]
        found = compared(plan, x, expected)
        print(f"{device} {options.precision}, {steps.count('fp16')} of {len(steps)} steps in fp16: "
              f"largest error {found.error:.3g}, {found.same_classes} of {found.inputs} inputs "
              "have the same class")


if __name__ == "__main__":
    main()
