"""The macros of the kernel dialect mean the same to every compiler."""

from pathlib import Path

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from tests.device.helpers import read

SOURCE = KernelSource.of(
    Path(__file__).with_name("dialect.cl"), "every_word", dynamic_shared=True)


def doubling(dtype: str) -> KernelSource:
    return KernelSource.of(SOURCE.path, "double_reals", {"HALVES": int(dtype == "float16")})


@pytest.mark.sanitize
def test_every_word(compiled_device: Device) -> None:
    device, groups = compiled_device, 3
    values = np.arange(1, 64 * groups + 1, dtype=np.float32)
    source = device.upload(values, "a test")
    target = device.upload(np.zeros_like(values), "a test")
    report = device.upload(np.zeros(4 * groups, np.uint32), "a test")
    device.launch(device.compile(SOURCE), (groups,), (64,),
                  (source, target, report, values.size, 0.5), shared_bytes=64 * 4)
    result = read(device, target, values.shape, values.dtype)
    expected = values.reshape(groups, 64)[:, ::-1] * 0.5 * np.tile([1, 2, 3, 4], 16)
    np.testing.assert_array_equal(result.reshape(groups, 64), expected)
    reported = read(device, report, 4 * groups, np.uint32)
    # each tile starts with the first four numbers of its work-group in reverse order
    sums = values.reshape(groups, 64)[:, 2:4].sum(axis=1)
    expected_report = [[11, 2 * groups, int(total), 3] for total in sums]
    np.testing.assert_array_equal(reported.reshape(groups, 4), expected_report)


@pytest.mark.sanitize
def test_halves(compiled_device: Device) -> None:
    device = compiled_device
    values = np.array([0, -0.0, 1, -1.5, 1e-4, 6e-8, 32752, 40000, np.inf, -np.inf, np.nan,
                       1 / 3], np.float16)
    source = device.upload(values, "a test")
    target = device.upload(np.zeros_like(values), "a test")
    kernel = device.compile(KernelSource.of(SOURCE.path, "double_halves"))
    device.launch(kernel, (1,), (64,), (source, target, values.size))
    result = read(device, target, values.shape, values.dtype)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result, values * np.float16(2))


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_reals(compiled_device: Device, dtype: str) -> None:
    device = compiled_device
    values = np.linspace(-5, 5, 44, dtype=dtype)
    values[:5] = [np.inf, -0.0, 6e-8, np.nan, 1e-4]
    source = device.upload(values, "a test")
    target = device.upload(np.ones_like(values), "a test")
    device.launch(device.compile(doubling(dtype)), (1,), (64,), (source, target, 32, values.size))
    result = read(device, target, values.shape, values.dtype)
    values[32:] = 0
    np.testing.assert_array_equal(result, values * 2)
    assert np.signbit(result[1])


@pytest.mark.sanitize
def test_votes_and_counts(compiled_device: Device) -> None:
    device = compiled_device
    values = np.random.default_rng(0).uniform(-1, 4, 64).astype(np.float32)
    votes, counts = np.zeros(6, np.uint32), np.zeros(64, np.int32)
    buffers = [device.upload(array, "a test") for array in (values, votes, counts)]
    device.launch(device.compile(KernelSource.of(SOURCE.path, "voted")), (1,), (64,), buffers)
    device.read(buffers[1], votes)
    device.read(buffers[2], counts)
    above = values.reshape(2, 1, 32) > np.arange(3)[:, None]
    np.testing.assert_array_equal(
        votes, np.packbits(above, axis=-1, bitorder="little").view("<u4").reshape(-1))
    np.testing.assert_array_equal(counts, np.bitwise_count(votes)[np.arange(64) % 6] + 2)


@pytest.mark.sanitize
def test_parts_of_a_group(compiled_device: Device) -> None:
    device = compiled_device
    values = np.linspace(-100, 100, 96, dtype=np.float32)
    values[:32] = np.arange(32) / 64
    source = device.upload(values, "a test")
    target = device.upload(np.zeros_like(values), "a test")
    ballots = device.upload(np.zeros(96, np.uint32), "a test")
    device.launch(device.compile(KernelSource.of(SOURCE.path, "parts")), (1,), (96,),
                  (source, target, ballots))
    result = read(device, target, values.shape, values.dtype)
    expected = np.concatenate([values[31::-1] * 8,
                               1 / (1 + np.exp(-values[:31:-1].astype(np.float64)))])
    np.testing.assert_allclose(result[np.arange(96) ^ 1], expected, rtol=1e-5, atol=1e-37)
    words = read(device, ballots, 96, np.uint32)
    above = (expected > 0.75).reshape(3, 32)
    np.testing.assert_array_equal(words.reshape(3, 32),
                                  (above << np.arange(32)).sum(1, keepdims=True) * np.ones(32))


@pytest.mark.sanitize
def test_maximum_and_minimum_are_those_of_numpy(compiled_device: Device) -> None:
    device = compiled_device
    numbers = np.array([0, 1, -1.5, np.inf, -np.inf, np.nan], np.float32)
    a, b = (np.ascontiguousarray(side.ravel()) for side in np.meshgrid(numbers, numbers))
    target = device.upload(np.zeros(2 * a.size, np.float32), "a test")
    device.launch(device.compile(KernelSource.of(SOURCE.path, "ordered")), (1,), (64,),
                  (device.upload(a, "a test"), device.upload(b, "a test"), target, a.size))
    np.testing.assert_array_equal(read(device, target, 2 * a.size),
                                  np.concatenate([np.maximum(a, b), np.minimum(a, b)]))


@pytest.mark.sanitize
def test_products_of_four(compiled_device: Device) -> None:
    device = compiled_device
    a, b, sums = np.random.default_rng(0).integers(-9, 10, (3, 4)).astype(np.float32)
    buffers = [device.upload(array, "a test") for array in (a, b, sums)]
    device.launch(device.compile(KernelSource.of(SOURCE.path, "add_products")), (1,), (1,), buffers)
    np.testing.assert_array_equal(read(device, buffers[2], 4), sums + a * b + b[1] * a)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_compiles_for_cuda(architecture: str) -> None:
    nvrtc = pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    for source in (SOURCE, doubling("float32"), doubling("float16"),
                   *(KernelSource.of(SOURCE.path, name)
                     for name in ("parts", "ordered", "add_products"))):
        cubin, info = nvrtc.compile_cubin(source, architecture)
        assert cubin.startswith(b"\x7fELF")
        assert info.registers > 0
        assert info.spill_bytes == 0
        assert "warning" not in info.log
