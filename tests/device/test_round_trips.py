import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.errors import OutOfMemoryError
from tests.device.helpers import read


def test_bytes_come_back(device: Device) -> None:
    values = np.arange(100, dtype=np.float32)
    buffer = device.upload(values, "a test")
    back = read(device, buffer, values.shape, values.dtype)
    np.testing.assert_array_equal(back, values)


def test_write_fills_the_start_only(device: Device) -> None:
    buffer = device.upload(np.arange(10, dtype=np.int32), "a test")
    device.write(buffer, np.array([-1, -2], np.int32))
    back = read(device, buffer, 10, np.int32)
    assert back.tolist() == [-1, -2, 2, 3, 4, 5, 6, 7, 8, 9]


def test_copy_moves_part_of_a_buffer(device: Device) -> None:
    source = device.upload(np.arange(8, dtype=np.int16), "a test")
    target = device.upload(np.zeros(8, np.int16), "a test")
    device.copy(target, source, 6)
    back = read(device, target, 8, np.int16)
    assert back.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_a_copy_stays_within_both_buffers(device: Device) -> None:
    values = np.arange(4 * device.alignment, dtype=np.uint8)
    whole, other = (device.upload(values, "a test") for _ in range(2))
    view = whole.view(0, 8)
    for target, source in ((view, other), (other, view)):
        with pytest.raises(ValueError, match="a copy of 9 bytes exceeds a buffer of 8 bytes"):
            device.copy(target, source, 9)
    device.copy(view, other.view(device.alignment, 8), 8)
    back = read(device, whole, values.shape, values.dtype)
    expected = values.copy()
    expected[:8] = values[device.alignment:device.alignment + 8]
    np.testing.assert_array_equal(back, expected)


def test_views_nest_and_keep_the_whole_alive(device: Device) -> None:
    count = device.alignment
    values = np.arange(3 * count, dtype=np.float32)
    view = device.upload(values, "a test").view(device.alignment, 8 * count)
    inner = view.view(device.alignment, 4 * count)
    back = read(device, inner, count)
    first = 2 * device.alignment // 4
    np.testing.assert_array_equal(back, values[first : first + count])
    device.write(inner, np.full(1, -5, np.float32))
    device.read(view.view(device.alignment, 4), back[:1])
    assert back[0] == -5


def test_views_must_be_aligned_and_inside(device: Device) -> None:
    buffer = device.empty(4 * device.alignment, "a test")
    with pytest.raises(ValueError, match="multiple of"):
        buffer.view(2, 4)
    with pytest.raises(ValueError, match="exceeds a buffer"):
        buffer.view(device.alignment, 4 * device.alignment)


def test_empty_memory_is_allowed(device: Device) -> None:
    buffer = device.empty(0, "nothing")
    assert buffer.nbytes == 0
    device.write(buffer, np.empty(0, np.float32))
    device.read(buffer, np.empty((3, 0), np.float32))
    assert device.upload(np.empty((0, 4), np.float32), "nothing").view(0, 0).nbytes == 0


def test_arrays_that_do_not_fit_are_refused(device: Device) -> None:
    buffer = device.empty(16, "a test")
    with pytest.raises(ValueError, match="does not fit"):
        device.write(buffer, np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="C-contiguous"):
        device.read(buffer, np.zeros((2, 2), np.float32).T)


def test_out_of_memory_names_bytes_and_purpose(device: Device) -> None:
    with pytest.raises(OutOfMemoryError, match=r"1152921504606846976 bytes \(weights of layer x\)"):
        device.empty(1 << 60, "weights of layer x")


def test_streams_keep_order(device: Device) -> None:
    stream = device.create_stream()
    buffer = device.empty(4000, "a test")
    for value in range(20):
        device.write(buffer, np.full(1000, value, np.float32), stream)
    back = read(device, buffer, 1000, stream=stream)
    device.synchronize(stream)
    assert (back == 19).all()
