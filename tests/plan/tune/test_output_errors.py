"""The error of a candidate's output, as the host and the device compute it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gossamer.device.base import Buffer, Device
from gossamer.device.registry import find
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.registry import OPS
from gossamer.plan.program import Layer
from gossamer.plan.tune.candidate_checks import CandidateChecks
from gossamer.plan.tune.discontinuity import Bounds
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.output_errors import GUARD, DeviceCheck, error_of, handles
from gossamer.tensor import ROW_MAJOR, Format, TensorSpec, default_spec, pack
from tests.plan.tune.paced import why_wrong

IMAGES = [0, 3, 6]


@pytest.mark.parametrize("form", [Format("packed64", "bits"), Format("NHWC", "float16")])
@pytest.mark.parametrize("changed", [None, "value", "guard"])
def test_only_memory_that_is_as_expected_is_right(
        form: Format, changed: str | None) -> None:
    device = find("host")
    margin = device.alignment
    signs = np.where(np.random.default_rng(0).random((7, 64, 20, 20)) < 0.5, -1, 1)
    array = signs.astype(np.float32)
    spec = TensorSpec(array.shape, form)
    memory = np.full(spec.nbytes + 2 * margin, GUARD, np.uint8)
    memory[margin:-margin] = pack(array, spec).reshape(-1).view(np.uint8)
    if changed:
        memory[margin + 1 if changed == "value" else 5] ^= 0x7F
    buffer = device.upload(memory, "a test output")
    found = error_of(buffer, spec, array[IMAGES], IMAGES)
    assert found == 0 if changed is None else found > 1e-3


@pytest.mark.parametrize(("changes", "is_right"), [
    ({}, True), ({0: 2.5}, True), ({0: 8.5}, False), ({0: math.nan}, False), ({1: 2.5}, False),
    ({1: math.nan}, False), ({3: 0.0}, False)])
def test_numbers_that_must_be_exact_are(changes: dict[int, float], is_right: bool) -> None:
    """The first number may be off by 4, and the last one is a NaN in the reference, too."""
    device, spec = find("host"), TensorSpec((4,))
    expected = np.float32([1, 2, 3, math.nan])
    result = expected.copy()
    for index, value in changes.items():
        result[index] = value
    limits = Bounds(np.float64([4, 1e-5, 1e-5, 1e-5]), np.arange(4) == 0)
    memory = np.full(spec.nbytes + 2 * device.alignment, GUARD, np.uint8)
    memory[device.alignment:-device.alignment] = result.view(np.uint8)
    error = error_of(device.upload(memory, "a test output"), spec, expected, None, limits)
    assert error == 0 if is_right else error == math.inf


def test_images_that_were_not_written_are_found_beside_equal_ones() -> None:
    device = find("host")
    margin = device.alignment
    spec = TensorSpec((7, 64, 20, 20), Format("NHWC", "float16"))
    array = np.ones(spec.shape, np.float32)
    memory = np.full(spec.nbytes + 2 * margin, GUARD, np.uint8)
    size = spec.nbytes // 7
    memory[margin:margin + 4 * size] = pack(array[:4], spec.first(4)).reshape(-1).view(np.uint8)
    memory[margin + 6 * size:-margin] = pack(array[:1], spec.first(1)).reshape(-1).view(np.uint8)
    buffer = device.upload(memory, "a test output")
    assert error_of(buffer, spec, array[IMAGES], IMAGES) == math.inf


SPECS = [TensorSpec((5, 7, 6, 5), Format(layout, dtype))
         for layout in ("NCHW", "NHWC", "CHWN") for dtype in ("float32", "float16")]
SPECS += [TensorSpec(shape, Format(ROW_MAJOR, dtype))
          for shape in ((3, 40), (64,), (4, 3, 2), ()) for dtype in ("float32", "float16")]
FEW, ALL = "first and last image", "all images"


@pytest.fixture(scope="module")
def checks(compiled_device: Device) -> DeviceCheck:
    return DeviceCheck(compiled_device)


def numbers(spec: TensorSpec) -> np.ndarray:
    return np.asarray(np.random.default_rng(0).standard_normal(spec.shape), np.float32)


def written(spec: TensorSpec, device: Device, array: np.ndarray | None = None) -> np.ndarray:
    """Returns the bytes of an output between its guards."""
    packed = np.ascontiguousarray(pack(numbers(spec) if array is None else array, spec))
    margin = np.full(device.alignment, GUARD, np.uint8)
    return np.concatenate([margin, packed.reshape(-1).view(np.uint8), margin])


def images_of(spec: TensorSpec, which: str | None) -> list[int] | None:
    if which is None or not spec.shape:
        return None
    return sorted({0, spec.shape[0] - 1}) if which == FEW else list(range(spec.shape[0]))


class Compared:
    """An output and what is expected of it, on the device and on the host."""

    def __init__(self, checks: DeviceCheck, device: Device, spec: TensorSpec, memory: np.ndarray,
                 expected: np.ndarray, images: list[int] | None) -> None:
        self.guarded = device.upload(memory, "an output")
        part = expected if images is None else expected[images]
        self.on_host = error_of(self.guarded, spec, part, images)
        right = device.upload(np.ascontiguousarray(part, np.float32), "what is expected")
        self.on_device = checks.error_of(self.guarded, spec, right, images)


@pytest.mark.sanitize
@pytest.mark.parametrize("which", [None, FEW, ALL])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_error_is_what_the_host_finds(checks: DeviceCheck, compiled_device: Device,
                                          spec: TensorSpec, which: str | None) -> None:
    assert handles(spec)
    expected = numbers(spec).astype(np.float64)
    expected += 1e-3 * np.abs(expected)
    found = Compared(checks, compiled_device, spec, written(spec, compiled_device), expected,
                     images_of(spec, which))
    assert 5e-4 < found.on_host < 2e-3
    assert found.on_device == pytest.approx(found.on_host, rel=1e-3)


@pytest.mark.parametrize("which", [None, FEW, ALL])
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("place", ["before", "after", "element", "last element"])
def test_guards_written_over_and_elements_left_out_are_found(
        checks: DeviceCheck, compiled_device: Device, spec: TensorSpec, place: str,
        which: str | None) -> None:
    memory, margin = written(spec, compiled_device), compiled_device.alignment
    size = spec.stored_dtype.itemsize
    if place == "before":
        memory[margin - 1] = 0
    elif place == "after":
        memory[margin + spec.nbytes] = 0
    else:
        index = spec.size - 1 if place == "last element" else spec.size // 2
        memory[margin + index * size:margin + (index + 1) * size] = GUARD
    found = Compared(checks, compiled_device, spec, memory, numbers(spec).astype(np.float64),
                     images_of(spec, which))
    assert found.on_device == math.inf == found.on_host


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[3]], ids=str)
@pytest.mark.parametrize("image", range(5))
def test_a_wrong_image_is_seen_where_it_is_compared(
        checks: DeviceCheck, compiled_device: Device, spec: TensorSpec, image: int) -> None:
    spoilt = numbers(spec)
    spoilt[image] = 0
    for which in (None, FEW, ALL):
        found = Compared(checks, compiled_device, spec, written(spec, compiled_device, spoilt),
                         numbers(spec).astype(np.float64), images_of(spec, which))
        assert (found.on_host > 1e-2) == (which != FEW or image in (0, 4))
        assert found.on_device == pytest.approx(found.on_host, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_must_be_the_same(checks: DeviceCheck,
                                                      compiled_device: Device,
                                                      value: float) -> None:
    spec = SPECS[0]
    odd, right = numbers(spec), numbers(spec).astype(np.float64)
    odd[0, 0, 0, 0] = value
    memory = written(spec, compiled_device, odd)
    assert Compared(checks, compiled_device, spec, memory, right, None).on_device == math.inf
    right[0, 0, 0, 0] = value
    assert Compared(checks, compiled_device, spec, memory, right, None).on_device == 0.0
    right[0, 0, 0, 0] = -value if value == value else 1.0
    assert Compared(checks, compiled_device, spec, memory, right, None).on_device == math.inf


@pytest.mark.parametrize("scale", [1e-16, 1e25, 0.0])
def test_squares_beyond_float32_are_left_to_the_host(checks: DeviceCheck, compiled_device: Device,
                                                     scale: float) -> None:
    spec = SPECS[0]
    array = (scale * numbers(spec)).astype(np.float32)
    found = Compared(checks, compiled_device, spec, written(spec, compiled_device, array),
                     array.astype(np.float64), images_of(spec, FEW))
    assert found.on_device is None and found.on_host == 0.0


def test_what_is_padded_packed_or_no_float_is_left_to_the_host() -> None:
    shape = (2, 3, 4, 5)
    for format_ in (Format("NCHW", border=(1, 1, 1, 1)), Format("NHWC", channel_multiple=8)):
        assert not handles(TensorSpec(shape, format_))
    assert not handles(default_spec(shape, "int32"))
    assert not handles(default_spec((1, *shape)))
    assert not handles(default_spec((0, 3, 4, 5)))


@pytest.mark.sanitize
@pytest.mark.parametrize("nbytes", [4, 1028, 2**20 + 4])
def test_memory_is_filled_with_guards(checks: DeviceCheck, compiled_device: Device,
                                      nbytes: int) -> None:
    buffer = compiled_device.upload(np.zeros(nbytes + 4, np.uint8), "a test")
    checks.fill_with_guards(buffer.view(0, nbytes))
    memory = np.empty(nbytes + 4, np.uint8)
    compiled_device.read(buffer, memory)
    assert (memory[:nbytes] == GUARD).all() and not memory[nbytes:].any()


@pytest.mark.parametrize("epilogue", [Epilogue(), Epilogue(apply("sign"))])
def test_candidates_are_checked_on_the_device(checks: DeviceCheck, compiled_device: Device,
                                              epilogue: Epilogue,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a result that jumps, the numbers before the jump are compared on the device."""
    problem = GemmProblem(6, 20, 8, epilogue)
    weights = {name: np.random.default_rng(1).standard_normal(shape).astype(np.float32)
               for name, shape in problem.weight_shapes.items()}
    layer = Layer("product", ["x"], ["y"], problem, weights)
    memory = CandidateMemory(compiled_device)
    memory.on_device = checks
    errors: list[float | None] = []
    on_device = DeviceCheck.error_of

    def recorded(self: DeviceCheck, *arguments: object) -> float | None:
        errors.append(on_device(self, *arguments))  # type: ignore[arg-type]
        return errors[-1]

    monkeypatch.setattr(DeviceCheck, "error_of", recorded)
    algorithm = next(algorithm for algorithm in OPS["gemm"].algorithms
                     if algorithm.supports(problem, compiled_device) is None)
    variant = next(iter(algorithm.variants(problem, compiled_device)))
    candidates = CandidateChecks(layer, compiled_device, memory)
    assert why_wrong(candidates, algorithm, variant) is None
    assert len(errors) == 1 and errors[0] is not None and errors[0] < 1e-5

    def nothing(*arguments: Buffer) -> None:
        """Writes no output."""

    monkeypatch.setattr(type(algorithm), "launch", nothing)
    assert why_wrong(candidates, algorithm, variant) == "wrong numbers (error inf)"
