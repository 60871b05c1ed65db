"""Tests run side by side: torch has one thread in each. A small network for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch"):
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def operators_looked_up_once() -> Iterator[None]:
    """Has exports look up all operators of torch once, not once a namespace in every export, which
    takes a quarter of the time of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("torch"):
            from torch._export import utils

            # the function is private, and other versions of torch may lack it
            if look_up := getattr(utils, "_materialize_cpp_cia_ops", None):
                patch.setattr(utils, look_up.__name__, cache(look_up))
        yield


@pytest.fixture
def module() -> Any:
    """A convolutional network in evaluation mode."""
    from tests.torch.small import residual

    return residual()
