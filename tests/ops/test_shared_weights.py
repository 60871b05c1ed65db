"""Packed weights: shared by all who use a layer's, and freed with their last user."""

from __future__ import annotations

import gc
from collections.abc import Mapping

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.ops.weights import WeightsStore


def values(device: Device, form: Buffer) -> np.ndarray:
    memory = np.empty(form.nbytes // 4, np.float32)
    device.read(form, memory)
    return memory


def test_who_uses_a_layer_has_the_same_weights(device: Device) -> None:
    arrays = {"weight": np.arange(12, dtype=np.float32).reshape(3, 4)}
    store = WeightsStore()
    weights = store.of("a", arrays, device)
    assert store.of("a", arrays, device) is weights
    assert store.of("b", arrays, device) is not weights
    assert WeightsStore().of("a", arrays, device) is not weights


def test_a_form_is_made_once_while_it_is_used(device: Device) -> None:
    array = np.arange(6, dtype=np.float32)
    weights = WeightsStore().of("a", {"weight": array}, device)
    made = []

    def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        made.append(arrays["weight"])
        return arrays["weight"][::-1]

    buffer = weights.packed("reversed", pack)
    assert weights.packed("reversed", pack) is buffer and len(made) == 1
    assert weights.nbytes == buffer.nbytes == array.nbytes
    np.testing.assert_array_equal(values(device, buffer), array[::-1])
    del buffer
    gc.collect()
    assert weights.nbytes == 0
    buffer = weights.packed("reversed", pack)
    assert len(made) == 2 and weights.nbytes == buffer.nbytes
