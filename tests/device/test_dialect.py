"""The macros of the kernel dialect mean the same to every compiler."""

from pathlib import Path

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from tests.device.helpers import launched

SOURCE = KernelSource.of(
    Path(__file__).with_name("dialect.cl"), "every_word", dynamic_shared=True)


def of(name: str, **defines: int) -> KernelSource:
    return KernelSource.of(SOURCE.path, name, defines)


def doubling(dtype: str) -> KernelSource:
    return of("double_reals", HALVES=int(dtype == "float16"))


@pytest.mark.sanitize
def test_every_word(compiled_device: Device) -> None:
    groups = 3
    values = np.arange(1, 64 * groups + 1, dtype=np.float32).reshape(groups, 64)
    _, result, report = launched(
        compiled_device, SOURCE, (groups,), (64,), values, np.zeros_like(values),
        np.zeros((groups, 4), np.uint32), values.size, 0.5, shared_bytes=64 * 4)
    np.testing.assert_array_equal(result, values[:, ::-1] * 0.5 * np.tile([1, 2, 3, 4], 16))
    # each tile starts with the first four numbers of its work-group in reverse order
    np.testing.assert_array_equal(report, [
        [11, 2 * groups, int(total), 3] for total in values[:, 2:4].sum(axis=1)])


@pytest.mark.sanitize
def test_halves(compiled_device: Device) -> None:
    values = np.array([0, -0.0, 1, -1.5, 1e-4, 6e-8, 32752, 40000, np.inf, -np.inf, np.nan,
                       1 / 3], np.float16)
    _, result = launched(compiled_device, of("double_halves"), (1,), (64,), values,
                         np.zeros_like(values), values.size)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result, values * np.float16(2))


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_reals(compiled_device: Device, dtype: str) -> None:
    values = np.linspace(-5, 5, 44, dtype=dtype)
    values[:5] = [np.inf, -0.0, 6e-8, np.nan, 1e-4]
    _, result = launched(compiled_device, doubling(dtype), (1,), (64,), values,
                         np.ones_like(values), 32, values.size)
    values[32:] = 0
    np.testing.assert_array_equal(result, values * 2)
    assert np.signbit(result[1])


@pytest.mark.sanitize
def test_votes_and_counts(compiled_device: Device) -> None:
    values = np.random.default_rng(0).uniform(-1, 4, 64).astype(np.float32)
    _, votes, counts = launched(compiled_device, of("voted"), (1,), (64,), values,
                                np.zeros(6, np.uint32), np.zeros(64, np.int32))
    above = values.reshape(2, 1, 32) > np.arange(3)[:, None]
    np.testing.assert_array_equal(
        votes, np.packbits(above, axis=-1, bitorder="little").view("<u4").reshape(-1))
    np.testing.assert_array_equal(counts, np.bitwise_count(votes)[np.arange(64) % 6] + 2)


@pytest.mark.sanitize
def test_parts_of_a_group(compiled_device: Device) -> None:
    values = np.linspace(-100, 100, 96, dtype=np.float32)
    values[:32] = np.arange(32) / 64
    _, result, words = launched(compiled_device, of("parts"), (1,), (96,), values,
                                np.zeros_like(values), np.zeros((3, 32), np.uint32))
    expected = np.concatenate([values[31::-1] * 8,
                               1 / (1 + np.exp(-values[:31:-1].astype(np.float64)))])
    np.testing.assert_allclose(result[np.arange(96) ^ 1], expected, rtol=1e-5, atol=1e-37)
    above = (expected > 0.75).reshape(3, 32)
    np.testing.assert_array_equal(words,
                                  (above << np.arange(32)).sum(1, keepdims=True) * np.ones(32))


@pytest.mark.sanitize
def test_maximum_and_minimum_are_those_of_numpy(compiled_device: Device) -> None:
    numbers = np.array([0, 1, -1.5, np.inf, -np.inf, np.nan], np.float32)
    a, b = (np.ascontiguousarray(side.ravel()) for side in np.meshgrid(numbers, numbers))
    *_, result = launched(compiled_device, of("ordered"), (1,), (64,), a, b,
                          np.zeros((2, a.size), np.float32), a.size)
    np.testing.assert_array_equal(result, [np.maximum(a, b), np.minimum(a, b)])


@pytest.mark.sanitize
def test_products_of_four(compiled_device: Device) -> None:
    a, b, sums = np.random.default_rng(0).integers(-9, 10, (3, 4)).astype(np.float32)
    *_, result = launched(compiled_device, of("add_products"), (1,), (1,), a, b, sums)
    np.testing.assert_array_equal(result, sums + a * b + b[1] * a)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_compiles_for_cuda(architecture: str) -> None:
    nvrtc = pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    for source in (SOURCE, doubling("float32"), doubling("float16"),
                   *map(of, ("parts", "ordered", "add_products"))):
        cubin, info = nvrtc.compile_cubin(source, architecture)
        assert cubin.startswith(b"\x7fELF")
        assert info.registers > 0
        assert info.spill_bytes == 0
        assert "warning" not in info.log
