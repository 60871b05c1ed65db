"""Where PyTorch is missing, functions that need it say so."""

from __future__ import annotations

import pytest

import gossamer
from gossamer.errors import InputError
from gossamer.torch import library


@pytest.mark.parametrize("function", [gossamer.optimize, gossamer.explain])
def test_missing_torch_names_the_extra(monkeypatch, function):
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"is not installed; pip install '\.\[torch\]'"):
        function(object(), object())
