import os

import numpy as np
import pytest

from gossamer.io import shared_blocks
from gossamer.io.process_pool import ProcessPool
from gossamer.io.shared_blocks import SharedBlocks
from tests.processes import SECONDS


@pytest.fixture
def blocks():
    blocks = SharedBlocks(5000)
    if not blocks.descriptors:
        pytest.skip("the system has no memory that other processes can be given")
    yield blocks
    blocks.close()


def _without_memory(monkeypatch, name):
    def fail(*_):
        raise OSError("no memory is given")

    monkeypatch.setattr(os, name, fail)


def test_another_process_fills_a_block(blocks):
    names = os.listdir("/dev/shm") if os.path.exists("/dev/shm") else []
    first, _ = blocks.take()
    second, place = blocks.take()
    second[:] = 0
    values = np.arange(300, dtype=np.float32)
    with ProcessPool(1, "process that tests", descriptors=blocks.descriptors) as pool:
        assert pool.submit(shared_blocks.write, *blocks.descriptors, place + 200, values,
                           what="wrote").result(SECONDS)
    assert len(first) == len(second) == 5000
    assert not second[:200].any() and not second[1400:].any()
    np.testing.assert_array_equal(second[200:1400].view(np.float32), values)
    assert names == (os.listdir("/dev/shm") if os.path.exists("/dev/shm") else [])


def test_a_block_is_used_again_when_no_array_over_it_is_left(blocks):
    first, place = blocks.take()
    part = first[100:108].view(np.float64).reshape(1, 1)
    others = [blocks.take() for _ in range(3)]
    del first
    assert place not in {blocks.take()[1], *(other for _, other in others)}
    del part
    assert blocks.take()[1] == place


def test_arrays_stay_when_the_blocks_are_closed(blocks):
    array, _ = blocks.take()
    array[:] = 7
    blocks.close()
    assert blocks.take()[1] is None and (array == 7).all()


@pytest.mark.parametrize("name", ["memfd_create", "ftruncate"])
def test_blocks_where_the_system_gives_no_shared_memory(monkeypatch, name):
    _without_memory(monkeypatch, name)
    blocks = SharedBlocks(10)
    array, place = blocks.take()
    assert len(array) == 10 and place is None
    blocks.close()


def test_what_the_system_has_no_room_for_is_not_written(monkeypatch, blocks):
    _, place = blocks.take()
    _without_memory(monkeypatch, "pwrite")
    assert not shared_blocks.write(*blocks.descriptors, place, np.zeros(3))
