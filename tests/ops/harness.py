"""Checks every algorithm.

All variants are compared with the reference, between guard bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.facts import REAL
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.conv2d.common import config_of
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.op import Op
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec, held, logical_view, pack, unpack
from tests.tolerances import normalised_error, tolerance

_POISON = 0xFF
"""The byte that fills outputs, workspaces and the guards round them; it reads as NaN in floats and
as -1 in integers."""


def op_of(problem: Problem) -> Op:
    return OPS[problem.op]


def candidates(problem: Problem, device: Device) -> Iterator[tuple[Algorithm, Variant]]:
    """Yield every variant in which a device computes a problem."""
    for algorithm in op_of(problem).algorithms:
        if algorithm.supports(problem, device) is None:
            for variant in algorithm.variants(problem, device):
                yield algorithm, variant


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Draw normal floats, small integers of both signs, or booleans."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind == "u":
        return rng.integers(0, 256, shape).astype(dtype)
    if np.dtype(dtype).kind == "i":
        return rng.integers(-50, 50, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def random_inputs(problem: Problem, seed: int = 0) -> list[np.ndarray]:
    """Draw an array for each input.

    Its values are as the problem's facts say where they are few.
    """
    rng = np.random.default_rng(seed)
    return [facts.draw(rng, spec.shape).astype(spec.logical_dtype) if facts.few_values
            else held(random_array(rng, spec.shape, spec.logical_dtype.name), spec)
            for spec, facts in itertools.zip_longest(problem.inputs, problem.facts,
                                                     fillvalue=REAL)]


def random_weights(problem: Problem, seed: int = 1) -> dict[str, np.ndarray]:
    """Draw an array for each constant.

    Factors of bytes in a fusion are such that the image has numbers like others.
    """
    rng = np.random.default_rng(seed)
    weights = {name: random_array(rng, shape, "float32")
               for name, shape in problem.weight_shapes.items()}
    if "0.operand1" in weights and problem.inputs[0].dtype == "uint8":
        weights["0.operand1"] /= 128
    return weights


def check(problem: Problem, device: Device, *, inputs: Sequence[np.ndarray] | None = None,
          weights: Mapping[str, np.ndarray] | None = None, seed: int = 0,
          taken: Callable[[list[Variant]], list[Variant]] = list,
          vendors: bool = True) -> list[str]:
    """Compare every variant of every algorithm with the reference.

    The algorithms are those that support the problem on the device. The reference gets inputs of
    the dtypes of the variant. Returns "algorithm layout config" of each variant, of which there
    must be at least one. A variant of a lower precision that changes nothing for the values of the
    problem must be as near to the reference as variants in float32.

    inputs: logical arrays (default: random). weights: the constants (default: random float32).
    taken: selects among an algorithm's variants, where all would take too long. vendors: whether
    vendor libraries run as well, whose kernels compute-sanitizer should not check.
    """
    references = _References(problem,
                             random_inputs(problem, seed) if inputs is None else inputs,
                             random_weights(problem, seed + 1) if weights is None else weights)
    ran = []
    reasons = []
    for algorithm in op_of(problem).algorithms:
        if algorithm.vendor and not vendors:
            continue
        reason = algorithm.supports(problem, device)
        if reason is not None:
            reasons.append(f"{algorithm.name}: {reason}")
            continue
        variants = taken(list(algorithm.variants(problem, device)))
        ran += _compare_variants(algorithm, device, variants, references)
    assert ran, f"nothing on {device.name} computes {problem}: {'; '.join(reasons)}"
    return ran


def check_variants(algorithm: Algorithm, problem: Problem, device: Device,
                   variants: Sequence[Variant] | None = None,
                   weights: Mapping[str, np.ndarray] | None = None,
                   inputs: Sequence[np.ndarray] | None = None, *, supported: bool = True) -> None:
    """Compare variants of one algorithm, at least one, as `check` does.

    variants: all of the algorithm's where there are none. weights, inputs: random ones where there
    are none. supported: False where the algorithm also runs what it does not support, as it would
    be slow there.
    """
    if variants is None:
        variants = list(algorithm.variants(problem, device))
    assert variants
    if isinstance(algorithm, FusionAlgorithm):
        assert algorithm.recognises(problem)
    if supported:
        assert algorithm.supports(problem, device) is None
    _compare_variants(algorithm, device, variants, _References(
        problem, random_inputs(problem) if inputs is None else inputs,
        random_weights(problem) if weights is None else weights))


def check_every_bit(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device,
                    weights: Mapping[str, np.ndarray], inputs: Sequence[np.ndarray]) -> None:
    """Fails unless the results of a variant equal those of the reference, every bit."""
    results = run_variant(algorithm, problem, variant, device, Weights(weights, device), inputs)
    expected = op_of(problem).reference(problem, inputs, weights)
    for y, r in zip(results, expected, strict=True):
        np.testing.assert_array_equal(y, r.astype(np.float32),
                                      f"{variant.config_text} {variant.inputs[0]} of {problem}")


def variants_of(algorithm: Algorithm, problem: Problem, device: Device, precision: str,
                config: Mapping[str, object] | None = None) -> list[Variant]:
    """Return the variants in a precision whose config has these values."""
    return [variant for variant in algorithm.variants(problem, device)
            if variant.precision == precision
            and (config or {}).items() <= dict(variant.config).items()]


def with_tile(algorithm: Algorithm, problem: Problem, device: Device, tile: object,
              precision: str | None = None) -> Variant:
    """Return the first variant, of a precision if given, with another tile, offered or not."""
    first = next(variant for variant in algorithm.variants(problem, device)
                 if precision in (None, variant.precision))
    return replace(first, config=config_of(tile))


def quick(variants: list[Variant]) -> list[Variant]:
    """Return the variants with small tiles, or all where there are none.

    PoCL needs seconds to build one with large tiles, and Oclgrind to run it.
    """
    return [v for v in variants if dict(v.config).get("tile_p", 16) == 16] or variants


def one_layout_a_config(variants: list[Variant]) -> list[Variant]:
    """Return a variant of every config, layouts and precisions in turn."""
    configs = [list(group) for _, group in itertools.groupby(variants, key=lambda v: v.config)]
    return [group[index % len(group)] for index, group in enumerate(configs)]


def run_variant(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device,
                weights: Weights, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the logical outputs.

    Fails where a guard byte, an input or a padding was changed.
    """
    state = algorithm.prepare(weights, problem, variant, device)
    stored = [_stored(array, spec) for array, spec in zip(inputs, variant.inputs, strict=True)]
    sources = [device.upload(array, "a test input") for array in stored]
    targets = [Guarded(device, spec.nbytes) for spec in variant.outputs]
    workspace = Guarded(device, variant.workspace) if variant.workspace else None
    algorithm.launch(state, sources, [target.buffer for target in targets],
                     workspace.buffer if workspace else None)
    device.synchronize()
    for source, array in zip(sources, stored, strict=True):
        after = np.empty_like(array)
        device.read(source, after)
        assert after.tobytes() == array.tobytes(), f"{algorithm.name} wrote to its input"
    if workspace:
        workspace.contents(algorithm.name)
    return [_logical(target.contents(algorithm.name), spec)
            for target, spec in zip(targets, variant.outputs, strict=True)]


class Guarded:
    """Device memory filled with _POISON, with a guard before and after it."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self._margin = device.alignment
        self._nbytes = nbytes
        self._whole = device.upload(
            np.full(nbytes + 2 * self._margin, _POISON, np.uint8), "a test output")
        self.buffer: Buffer = self._whole.view(self._margin, nbytes)

    def contents(self, writer: str) -> np.ndarray:
        everything = np.empty(self._whole.nbytes, np.uint8)
        self._whole.device.read(self._whole, everything)
        end = self._margin + self._nbytes
        rim = np.concatenate([everything[: self._margin], everything[end:]])
        assert (rim == _POISON).all(), f"{writer} wrote outside of its output"
        return everything[self._margin : end].copy()


def _stored(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Return an array as memory holds it.

    Where other tensors have channels it is NaN.
    """
    stored = pack(array, spec)
    if any(spec.format.other_channels):
        stored.view(np.uint8)[...] = _POISON
        logical_view(stored, spec)[...] = array
    return stored


def _logical(memory: np.ndarray, spec: TensorSpec) -> np.ndarray:
    stored = memory.view(spec.stored_dtype).reshape(spec.stored_shape)
    if spec.dtype == "bool":
        assert (memory <= 1).all(), "a bool was stored as neither 0 nor 1"
    array = unpack(stored, spec)
    if stored.size != array.size:
        assert _stored(array, spec).tobytes() == stored.tobytes(), (
            "a channel of another tensor was written" if any(spec.format.other_channels)
            else "a padding is not zero")
    return array


class _References:
    """The outputs of a problem's reference for inputs and constants, by the inputs' dtypes."""

    def __init__(self, problem: Problem, inputs: Sequence[np.ndarray],
                 weights: Mapping[str, np.ndarray]) -> None:
        self.problem, self.inputs, self.weights = problem, list(inputs), dict(weights)
        self._by_dtypes: dict[tuple[np.dtype, ...], list[np.ndarray]] = {}

    def of(self, variant: Variant) -> list[np.ndarray]:
        dtypes = tuple(spec.logical_dtype for spec in variant.inputs)
        if dtypes not in self._by_dtypes:
            stored = [np.asarray(array, dtype)
                      for array, dtype in zip(self.inputs, dtypes, strict=True)]
            outputs = op_of(self.problem).reference(self.problem, stored, self.weights)
            for spec, array in zip(self.problem.outputs, outputs, strict=True):
                assert array.shape == spec.shape, (
                    f"reference gives {array.shape} where {spec} is stated")
            self._by_dtypes[dtypes] = outputs
        return self._by_dtypes[dtypes]


def _compare_variants(algorithm: Algorithm, device: Device, variants: Sequence[Variant],
                      references: _References) -> list[str]:
    """Compare variants with the references, and return their names."""
    problem = references.problem
    weights = Weights(references.weights, device, "the test")
    names = []
    for variant in variants:
        layout = variant.inputs[0] if variant.inputs else ""
        name = f"{algorithm.name} {layout} {variant.config_text}"
        actual = run_variant(algorithm, problem, variant, device, weights, references.inputs)
        precision = "fp32" if variant.is_as_precise_as_float32(problem) else variant.precision
        _compare(problem, precision, name, actual, references.of(variant))
        names.append(name)
    return names


def _compare(problem: Problem, precision: str, name: str, actual: Sequence[np.ndarray],
             expected: Sequence[np.ndarray]) -> None:
    for index, (y, r) in enumerate(zip(actual, expected, strict=True)):
        if y.dtype.kind == "f":
            error = normalised_error(y, r)
            limit = tolerance(problem.op, precision)
            assert error <= limit, (f"{name} in {precision}: output {index} of {problem} is off by "
                                    f"{error:.3g}, allowed {limit:.3g}")
        else:
            np.testing.assert_array_equal(y, r, f"{name}: output {index} of {problem}")
