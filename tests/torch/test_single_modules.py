"""Each module of a table is computed as torch computes it, at several batch sizes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

import gossamer
from tests.tolerances import normalised_error
from tests.torch.single_modules import table

MODULES = table()


@pytest.mark.parametrize("name", MODULES)
def test_module_is_computed(name):
    module, inputs = MODULES[name]
    fast = gossamer.optimize(module, inputs)
    for batch in (1, 2, 5):
        tensors = [torch.cat([x, x.flip(-1), x])[:batch] for x in inputs]
        with torch.no_grad():
            expected = module(*tensors)
        y = fast(*tensors)
        assert y.dtype == expected.dtype
        assert normalised_error(y.numpy(), expected.numpy()) < 1e-5
