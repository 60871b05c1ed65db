"""Makes the case of a convolution of signs, with packed bits as input and output. The peers compute
the same signs with floats or 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gossamer.bench.work import OWN, AbsentError, Setting
from gossamer.device.base import Buffer, Device
from gossamer.expression import Expression, ExpressionStep
from gossamer.facts import PLUS_MINUS_ONE
from gossamer.measure import Work, measure
from gossamer.ops.algorithm import Algorithm, Epilogue, Problem, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.copy.problem import convert
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights, WeightsInfo
from gossamer.plan.program import build
from gossamer.tensor import Format, TensorSpec, pack, unpack
from gossamer_bench.contender import Alternative, ReadyContender, TimedContender
from gossamer_bench.layer_tables import ConvLayer
from gossamer_bench.peers.cudnn_int8 import cudnn_int8
from gossamer_bench.suites.layers import convolution, layer_case
from gossamer_bench.work import Case

INT8 = "cudnn-int8"
"""The name of the contender that is cuDNN with 8-bit integers."""
_SIGNS = np.array([-1, 1], np.float32)
_LOOKS = 3
"""Samples of each variant's time, by which the fastest variant is chosen."""
_MOST_VARIANTS = 8
"""The most variants of an algorithm that are timed. The variants that are expected to be the
fastest are timed."""
_DRAWN_IMAGES = 8
"""Number of random images; a larger batch repeats them."""
_SIGN = Epilogue(Expression(2, (
    ExpressionStep("add", (0, 1)), ExpressionStep("constant", (), (0.0,)),
    ExpressionStep("greater", (2, 3)), ExpressionStep("constant", (), (1.0,)),
    ExpressionStep("constant", (), (-1.0,)), ExpressionStep("where", (4, 5, 6)))), ("channel",))
"""An epilogue with the result 1 where the sum of products plus the bias of the channel is greater
than 0, and -1 elsewhere."""


def binary_case(suite: str, layer: ConvLayer, batch: int, setting: Setting) -> Case:
    """Makes the case of a convolution with bias whose inputs and weights are signs.

    gossamer reads packed bits, compares the sums with thresholds and writes packed bits. The
    contenders `gossamer/fp16` and `gossamer:ALGORITHM/fp16` read and write float16 NHWC, so that
    they pack their input and unpack their output. Peers compute convolution, bias and ReLU in the
    precisions of the setting, and cuDNN in 8-bit integers too. No sum is 0, so that a peer's result
    is greater than 0 exactly where the sign is 1. The signs of every contender are checked.
    """
    device = setting.device
    rng = np.random.default_rng(0)
    weight = rng.choice(_SIGNS, layer.weight_shape)
    # a sum of an even number of signs is even, so that the sum plus an odd bias is never 0
    bias = (2 * rng.integers(-8, 8, layer.out_channels) + 1).astype(np.float32)
    image = (layer.channels, layer.size, layer.size)
    x = np.resize(rng.choice(_SIGNS, (min(batch, _DRAWN_IMAGES), *image)), (batch, *image))
    problem = Conv2dProblem(
        batch, layer.channels, layer.size, layer.size, layer.out_channels,
        (layer.kernel, layer.kernel), (layer.stride, layer.stride), (layer.pad,) * 4,
        groups=layer.groups, epilogue=_SIGN, weights_info=WeightsInfo(scaled_signs=True),
        facts=(PLUS_MINUS_ONE,))
    floats = layer_case(suite, convolution(layer, weight, bias), batch, setting, x=x)
    on_device = _OnDevice(problem, Weights({"weight": weight, "operand0": bias}, device), x, device)
    algorithms = [algorithm for algorithm in OPS["conv2d"].algorithms
                  if algorithm.supports(problem, device) is None and on_device.packed(algorithm)]

    def fastest(contender: str, among: Sequence[Algorithm], by_floats: bool) -> list[Alternative]:
        if not among:
            raise AbsentError(f"no algorithm multiplies bits on {device.name}")
        return [Alternative("b1", partial(on_device.ready, contender, among, by_floats))]

    contenders: dict[str, Callable[[], list[Alternative]]] = {
        OWN: partial(fastest, OWN, algorithms, False),
        f"{OWN}/fp16": partial(fastest, f"{OWN}/fp16", algorithms, True)}
    for algorithm in algorithms:
        name = f"{OWN}:{algorithm.name}"
        contenders[name] = partial(fastest, name, [algorithm], False)
        contenders[f"{name}/fp16"] = partial(fastest, f"{name}/fp16", [algorithm], True)
    for name in setting.against:
        if name in floats.contenders:
            contenders[name] = partial(_signs_of_all, floats.contenders[name])
    if device.runs_cuda_libraries:
        plain = replace(problem, epilogue=Epilogue(), facts=())
        contenders[INT8] = partial(_signs_of_all, partial(
            cudnn_int8, INT8, plain, x, {"weight": weight, "bias": bias}, device))
    return replace(floats, flops=2 * problem.depth * problem.outputs[0].size,
                   expected=_signs(floats.expected), contenders=contenders)


@dataclass(frozen=True)
class _OnDevice:
    """A convolution of signs with its constants and its input on a device."""

    problem: Conv2dProblem
    weights: Weights
    x: np.ndarray
    device: Device
    stored: dict[TensorSpec, np.ndarray] = field(default_factory=dict)
    """The input as it lies in memory, by its spec."""
    best: dict[str, tuple[Variant, float]] = field(default_factory=dict)
    """For each algorithm that was timed, by name: the fastest variant, and the microseconds that
    this variant takes."""

    def packed(self, algorithm: Algorithm) -> list[Variant]:
        """Returns the variants that read and write packed bits. If there are more than
        _MOST_VARIANTS, returns only the variants that are expected to be the fastest."""
        found = [variant for variant in algorithm.variants(self.problem, self.device)
                 if variant.inputs[0].format.is_packed and variant.outputs[0].format.is_packed]
        return sorted(found, key=lambda variant: algorithm.expected_us(
            self.problem, variant, self.device) or 0.0)[:_MOST_VARIANTS]

    def ready(self, contender: str, algorithms: Sequence[Algorithm],
              by_floats: bool) -> ReadyContender:
        """Prepares the fastest variant of some algorithms.

        by_floats: whether the contender reads and writes float16, so that it packs its input and
        unpacks its output.
        """
        device = self.device
        for algorithm in algorithms:
            if algorithm.name not in self.best:
                self.best[algorithm.name] = self._fastest_of(algorithm)
        algorithm = min(algorithms, key=lambda each: self.best[each.name][1])
        variant, _ = self.best[algorithm.name]
        packed_input = self._uploaded(variant.inputs[0])
        target = device.empty(variant.outputs[0].nbytes, "a layer's output")
        _, work, _ = self._fastest([(algorithm, self.problem, variant, packed_input, target)])
        config = f"{algorithm.name} {variant.config_text}"
        source_spec, spec = variant.inputs[0], variant.outputs[0]
        if by_floats:
            source_spec, spec = (TensorSpec(packed.shape, Format("NHWC", "float16"))
                                 for packed in (source_spec, spec))
            floats = self._uploaded(source_spec)
            result = device.empty(spec.nbytes, "a layer's output")
            packing = self._conversion(source_spec, variant.inputs[0], floats, packed_input)
            unpacking = self._conversion(variant.outputs[0], spec, target, result)
            works = [packing, work, unpacking]
        else:
            works, result = [work], target

        def all_works(stream: Any) -> None:
            for each in works:
                each(stream)

        def output(count: int) -> np.ndarray:
            first = spec.first(count)
            stored = np.empty(first.stored_shape, first.stored_dtype)
            device.read(result, stored)
            return _signs(unpack(stored, first))

        layout = spec.layout if by_floats else source_spec.layout
        return ReadyContender(contender, device, all_works, output, layout, config, "b1",
                              captured=True)

    def _uploaded(self, spec: TensorSpec) -> Buffer:
        """Returns the input on the device, in the format of a spec."""
        if spec not in self.stored:
            self.stored[spec] = pack(self.x, spec)
        return self.device.upload(self.stored[spec], "a layer's input")

    def _fastest_of(self, algorithm: Algorithm) -> tuple[Variant, float]:
        """Returns an algorithm's fastest variant that reads and writes packed bits, and the
        variant's microseconds."""
        found = self.packed(algorithm)
        sources = {spec: self._uploaded(spec) for spec in
                   dict.fromkeys(variant.inputs[0] for variant in found)}
        target = self.device.empty(max(variant.outputs[0].nbytes for variant in found),
                                   "a layer's output")
        variant, _, time_us = self._fastest(
            [(algorithm, self.problem, variant, sources[variant.inputs[0]], target)
             for variant in found])
        return variant, time_us

    def _conversion(self, source: TensorSpec, target: TensorSpec, read: Buffer,
                    written: Buffer) -> Work:
        """Returns the fastest conversion between packed bits and floats."""
        problem = convert(source, target, (PLUS_MINUS_ONE,))
        return self._fastest([
            (algorithm, problem, variant, read, written) for algorithm in OPS["copy"].algorithms
            if algorithm.supports(problem, self.device) is None
            for variant in algorithm.variants(problem, self.device)])[1]

    def _fastest(self, found: Sequence[tuple[Algorithm, Problem, Variant, Buffer, Buffer]]
                 ) -> tuple[Variant, Work, float]:
        works = []
        for algorithm, problem, variant, read, written in found:
            state = build(algorithm, self.weights, problem, variant, self.device)
            works.append(partial(_launch, algorithm, state, read, written))
        times = measure(self.device, works, repeats=_LOOKS)
        best = min(range(len(found)), key=lambda number: times[number].median_us)
        return found[best][2], works[best], times[best].median_us


def _launch(algorithm: Algorithm, state: Any, source: Buffer, target: Buffer, stream: Any) -> None:
    algorithm.launch(state, [source], [target], None, stream)


def _signs_of_all(make: Callable[[], list[Alternative]]) -> list[Alternative]:
    """Returns the ways to run a peer (`Alternative`), with their outputs replaced by signs."""
    return [replace(alternative, make=partial(_with_signs, alternative.make))
            for alternative in make()]


def _with_signs(make: Callable[[], ReadyContender | TimedContender]
                ) -> ReadyContender | TimedContender:
    ready = make()
    return replace(ready, output=lambda count: _signs(ready.output(count)))


def _signs(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, np.float32(1), np.float32(-1))
