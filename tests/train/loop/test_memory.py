"""Networks for which the memory does not suffice."""

import numpy as np
import pytest

from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.train import MLP, cross_validate
from gossamer.train.loop import memory

X, Y = np.zeros((4, 2), np.float32), np.arange(4) % 2


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Paths of the files that say how much memory there is; they do not exist yet."""
    paths = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_MEMINFO", paths[0])
    monkeypatch.setattr(memory, "_LIMITS", paths[1:])
    return paths


def test_what_is_available(files):
    assert memory.available() == find("host").limits.memory_bytes
    files[0].write_text("MemTotal:  90 kB\nMemAvailable:    5 kB\n")
    assert memory.available() == 5120
    files[1].write_text("max\n")
    assert memory.available() == 5120
    files[1].write_text("4096\n")
    assert memory.available() == 4096


def test_too_large_a_network(files):
    """A 2-3-2 network has 17 parameters, in five copies of four bytes each."""
    mlp = MLP.published((2, 3, 2), device="host", epochs=1)
    files[1].write_text("340")
    mlp.fit(X, Y)
    files[1].write_text("339")
    message = (r"sizes \(2, 3, 2\): 17 parameters take 340 bytes to train \(5 copies\), 339 bytes "
               "of memory are available: expected fewer units")
    for train in (MLP.published((2, 3, 2), device="host").fit, mlp.partial_fit):
        with pytest.raises(InputError, match=message):
            train(X, Y)


def test_folds_and_velocities_count(files):
    files[1].write_text("1359")
    with pytest.raises(InputError, match=r"config 0: .*: 68 parameters take 1360 bytes"):
        cross_validate(MLP.published((2, 3, 2), device="host", momentum=0.5), X, Y, folds=2)
