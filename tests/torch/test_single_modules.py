"""Each module of a table is computed as torch computes it, at several batch sizes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

import gossamer
from tests.torch.single_modules import LARGEST_ERROR, eager, error, own_table

MODULES = own_table()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_module_is_computed(name):
    module, inputs = MODULES[name]
    fast = gossamer.optimize(module.eval(), inputs)
    for batch in (1, 2, 5):
        tensors = [torch.cat([x, x.flip(-1), x])[:batch] for x in inputs]
        expected = eager(module, *tensors)
        y = fast(*tensors)
        assert y.dtype == expected.dtype
        assert error(y, expected) < LARGEST_ERROR
