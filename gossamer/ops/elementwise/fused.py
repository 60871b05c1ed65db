"""Evaluation of an expression in one kernel.

This module generates the C code of the loads, the arithmetic and the stores. The template fused.cl
contains the rest of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.epilogue import c_float
from gossamer.ops.kernel_expression import floats_in_kernels, integers_in_kernels
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    KernelAlgorithm,
    Strides,
    broadcast_strides,
    cannot_compile,
    dense_strides,
    divisor,
    groups_for,
    layout_variants,
    memory_order,
    merge,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import BFLOAT16, Format, TensorSpec, pack

_SOURCE = Path(__file__).with_name("fused.cl")
_TYPES = {"float32": "float", "float16": "HALF", "int32": "int", "int64": "INT64",
          "int8": "signed char", "uint8": "uchar", "int16": "short", "uint16": "ushort",
          "bool": "uchar", BFLOAT16: "unsigned short"}
_NARROW = ("int8", "uint8", "int16", "uint16")
_VECTORS = {"float": "float4", "HALF": "float4", "int": "int4", "uchar": "uchar4"}
_FLOAT_ONLY = {"pow", "fma", "fmod", "exp", "log", "sqrt", "tanh", "sin", "cos", "tan", "atan",
               "erf", "floor", "round", "to_float16", "to_bfloat16", "sigmoid", "hard_sigmoid"}
_MOST_DIMENSIONS = 6


class FusedElementwise(KernelAlgorithm):
    """One kernel that reads every operand once and writes every output once."""

    op = "elementwise"
    name = "fused"
    reads_parts = True

    def supports(self, problem: ElementwiseProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if problem.arithmetic != "float32":
            for step in problem.expression.steps:
                if step.function in _FLOAT_ONLY:
                    return f"does not support {step.function} of {problem.arithmetic}"
        if any(len(_loops(problem, problem.reading(variant))[0]) > _MOST_DIMENSIONS
               for variant in layout_variants(problem)):
            return f"needs operands of at most {_MOST_DIMENSIONS} dimensions after merging"
        return None

    def variants(self, problem: ElementwiseProblem, device: Device) -> Iterable[Variant]:
        variants = layout_variants(problem)
        own = problem.formats[0] if problem.is_conversion else None
        if own is not None and own.dtype in ("float32", "float16"):
            # the first variant keeps the input's format, so that the input needs no conversion
            spec = TensorSpec(problem.shape, own)
            variants.insert(0, Variant((), (spec,), (spec,)))
        # Only float32 results of float, 8-bit and bool operands have fp16 variants: if operands
        # were rounded, a comparison (a bool result) could be wrong, and float16 cannot represent
        # large integers.
        operands = {spec.dtype for spec in problem.operands}
        if set(problem.dtypes) == {"float32"} and not operands & {
                "int32", "int64", "int16", "uint16"}:
            variants += [variant.as_fp16 for variant in variants]
        return dict.fromkeys(map(problem.reading, variants))

    def kernel_launches(self, weights: Weights, problem: ElementwiseProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        sizes, walks = _loops(problem, variant)
        offsets = [spec.offset for spec in _operand_specs(problem, variant)]
        vector = _vector(sizes, walks, offsets)
        generator = _Generator(problem, variant, sizes, walks, offsets, vector)
        kernel = device.compile(
            KernelSource.of(_SOURCE, "elementwise", generator.macros()))
        constants = {f"operand{index}": _constant(weights, problem, index,
                                                  variant.outputs[0].layout)
                     for index in problem.constants}
        arguments: list[Argument | Callable[..., Argument]] = [
            *problem.arranged(constants, map(input_buffer, range(len(problem.inputs)))),
            *map(output_buffer, range(len(problem.outputs))), *generator.numbers]
        items = variant.outputs[0].size // vector
        return [Launch(kernel, groups_for(items), (WORK_GROUP_SIZE,), (*arguments, items))]


def _constant_spec(spec: TensorSpec, layout: str, rank: int) -> TensorSpec:
    """Return the spec with which a constant is stored, in the outputs' layout."""
    if rank != 4:
        return spec
    return TensorSpec((1,) * (4 - len(spec.shape)) + spec.shape, Format(layout, spec.dtype))


def _constant(weights: Weights, problem: ElementwiseProblem, index: int,
              layout: str) -> Argument:
    spec = _constant_spec(problem.operands[index], layout, len(problem.shape))

    def stored(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        return pack(np.asarray(arrays[f"operand{index}"]).reshape(spec.shape), spec)

    return weights.packed(f"operand{index} {spec.layout}", stored)


def _operand_specs(problem: ElementwiseProblem, variant: Variant) -> list[TensorSpec]:
    """Return the spec with which each operand is stored, including constants."""
    output = variant.outputs[0]
    return problem.arranged(
        {f"operand{index}": _constant_spec(problem.operands[index], output.layout,
                                           len(output.shape))
         for index in problem.constants}, variant.inputs)


def _loops(problem: ElementwiseProblem,
           variant: Variant) -> tuple[tuple[int, ...], list[Strides]]:
    """Return the sizes of the merged dimensions, and each operand's strides.

    The dimensions are in the memory order of the outputs.
    """
    output = variant.outputs[0]
    order = memory_order(output)
    walks = [[output.strides[dim] for dim in order]]
    for spec in _operand_specs(problem, variant):
        strides = broadcast_strides(spec, output.shape)
        walks.append([strides[dim] for dim in order])
    sizes, merged, _ = merge([output.shape[dim] for dim in order], walks)
    return sizes, merged[1:]


def _vector(sizes: tuple[int, ...], walks: list[Strides], offsets: list[int]) -> int:
    """Return the number of consecutive elements that a work-item computes.

    The number is 4 if vectors of four elements are aligned, and 1 if they are not. They are aligned
    if the following are multiples of 4: the innermost size, all offsets, and the outer strides of
    operands whose elements are contiguous.
    """
    if not sizes or sizes[-1] % 4 or any(offset % 4 for offset in offsets):
        return 1
    aligned = all(stride % 4 == 0 for walk in walks if walk[-1] == 1 for stride in walk[:-1])
    return 4 if aligned else 1


@dataclass
class _Generator:
    """Generates the macros of one kernel.

    sizes: sizes of the merged dimensions of the outputs, outermost first.
    walks: for each operand, its strides along these dimensions.
    offsets: for each operand, the offset of its first element, in elements.
    vector: number of consecutive elements that a work-item computes.
    numbers: values of the kernel's integer parameters.
    """

    problem: ElementwiseProblem
    variant: Variant
    sizes: tuple[int, ...]
    walks: list[Strides]
    offsets: list[int]
    vector: int

    def __post_init__(self) -> None:
        self._dtypes = [spec.dtype for spec in _operand_specs(self.problem, self.variant)]
        dense = dense_strides(self.sizes)
        self._scalar = [not any(walk) for walk in self.walks]
        # Operands that the kernel addresses by coordinates, strides and an offset. Of the other
        # operands, scalars are read at index 0, and tensors at the output's index.
        self._walked = [index for index, walk in enumerate(self.walks)
                        if (any(walk) and walk != dense) or self.offsets[index]]
        self.numbers: list[int] = []
        if self._walked:
            self.numbers = [n for size in self.sizes for n in divisor(size)]
            self.numbers += [number for index in self._walked
                             for number in (self.offsets[index], *self.walks[index])]

    def macros(self) -> dict[str, object]:
        compute, results = self._compute()
        return {
            "VALUE": _TYPES[self.problem.arithmetic],
            "VECTOR": self.vector,
            "PARAMETERS": ", ".join(self._parameters()),
            "COORDINATES": self._coordinates(),
            "LOADS": " ".join(self._load(index) for index in range(len(self.walks))),
            "RESULTS": " ".join(f"VALUE r{i}[VECTOR];" for i in range(len(results))),
            "COMPUTE": " ".join([*compute, *(f"r{i}[k] = {name};"
                                             for i, name in enumerate(results))]),
            "STORES": " ".join(self._store(i, spec.dtype)
                               for i, spec in enumerate(self.variant.outputs)),
        }

    def _parameters(self) -> list[str]:
        texts = [f"const GLOBAL {_TYPES[dtype]} *a{index}"
                 for index, dtype in enumerate(self._dtypes)]
        texts += [f"GLOBAL {_TYPES[spec.dtype]} *RESTRICT y{index}"
                  for index, spec in enumerate(self.variant.outputs)]
        if self._walked:
            dims = range(len(self.sizes))
            texts += [f"DIVISOR(n{dim})" for dim in dims]
            texts += [text for index in self._walked
                      for text in (f"int f{index}", *(f"int s{index}_{dim}" for dim in dims))]
        return texts

    def _coordinates(self) -> str:
        if not self._walked:
            return ""
        lines = ["uint rest = index;"]
        for dim in reversed(range(1, len(self.sizes))):
            lines.append(f"uint q{dim} = QUOTIENT(rest, n{dim}); "
                         f"int c{dim} = (int)(rest - q{dim} * (uint)n{dim}); rest = q{dim};")
        lines.append("int c0 = (int)rest;")
        for index in self._walked:
            terms = [f"f{index}", *(f"c{dim} * s{index}_{dim}" for dim in range(len(self.sizes)))]
            lines.append(f"int o{index} = {' + '.join(terms)};")
        return " ".join(lines)

    def _load(self, index: int) -> str:
        kind = _TYPES[self._dtypes[index]]
        declare = f"VALUE v{index}[VECTOR];"
        if self._scalar[index] and index not in self._walked:
            position, step = "0", "0"
        elif index in self._walked:
            position, step = f"o{index}", f"s{index}_{len(self.sizes) - 1}" if self.sizes else "0"
        else:
            position, step = "index", "1"
        contiguous = bool(self.walks[index]) and self.walks[index][-1] == 1
        if self.vector == 4 and contiguous and kind in _VECTORS:
            lanes = " ".join(f"v{index}[{k}] = (VALUE)w{index}.{lane};"
                             for k, lane in enumerate("xyzw"))
            four = _four(kind, f"a{index}", position)
            return f"{declare} {_VECTORS[kind]} w{index} = {four}; {lanes}"
        ones = [_one(kind, f"a{index}", f"{position} + {k} * {step}") for k in range(self.vector)]
        lanes = " ".join(f"v{index}[{k}] = (VALUE){one};" for k, one in enumerate(ones))
        return f"{declare} {lanes}"

    def _compute(self) -> tuple[list[str], list[str]]:
        integer = self.problem.arithmetic != "float32"
        rewritten = integers_in_kernels if integer else floats_in_kernels
        expression = rewritten(self.problem.expression)
        names = [f"v{index}[k]" for index in range(len(self.walks))]
        return expression.c_statements(names, _c_integer if integer else c_float, "t")

    def _store(self, index: int, dtype: str) -> str:
        kind = _TYPES[dtype]

        def converted(k: int) -> str:
            value = f"r{index}[{k}]"
            if dtype == "bool":
                return f"(uchar)({value} != ZERO)"
            if dtype in _NARROW:
                # integers that do not fit the dtype wrap around
                return f"({kind})(int){value}"
            return f"({'float' if kind == 'HALF' else kind}){value}"

        if self.vector == 4 and kind in _VECTORS:
            lanes = " ".join(f"z{index}.{lane} = {converted(k)};"
                             for k, lane in enumerate("xyzw"))
            store = (f"STORE_HALF4(y{index}, index, z{index})" if kind == "HALF"
                     else f"*(GLOBAL {_VECTORS[kind]} *)(y{index} + index) = z{index}")
            return f"{_VECTORS[kind]} z{index}; {lanes} {store};"
        if kind == "HALF":
            return " ".join(f"STORE_HALF(y{index}, index + {k}, {converted(k)});"
                            for k in range(self.vector))
        return " ".join(f"y{index}[index + {k}] = {converted(k)};" for k in range(self.vector))


def _one(kind: str, pointer: str, position: str) -> str:
    """Return the C expression that loads an element from memory."""
    if kind == _TYPES[BFLOAT16]:
        return f"BITS_AS_FLOAT((uint){pointer}[{position}] << 16)"
    return f"LOAD_HALF({pointer}, {position})" if kind == "HALF" else f"{pointer}[{position}]"


def _four(kind: str, pointer: str, position: str) -> str:
    """Return the C expression that loads four consecutive elements.

    position: index of the first element, a multiple of 4.
    """
    if kind == "HALF":
        return f"LOAD_HALF4({pointer}, {position})"
    return f"*(const GLOBAL {_VECTORS[kind]} *)({pointer} + {position})"


def _c_integer(value: float) -> str:
    return f"((VALUE){int(value)})"
