"""Threads that are bound to processors for a while."""

from __future__ import annotations

import os

import pytest

from gossamer.device.affinity import bound


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"),
                    reason="the system does not bind threads to processors")
def test_a_bound_thread_is_free_again() -> None:
    before = os.sched_getaffinity(0)
    first = min(before)
    with pytest.raises(KeyError), bound([first]):
        assert os.sched_getaffinity(0) == {first}
        raise KeyError
    assert os.sched_getaffinity(0) == before
    with bound([]):
        assert os.sched_getaffinity(0) == before
