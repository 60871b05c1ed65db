"""Threads of BLAS while the host trains, and Python threads that train at the same time."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from gossamer.ops.backprop import host, host_updates
from gossamer.train import MLP

Blobs = tuple[np.ndarray, np.ndarray]


def _blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.fixture
def most() -> list[int]:
    """Numbers of BLAS threads before any training."""
    threads = _blas_threads()
    if set(threads) <= {1}:
        pytest.skip("BLAS has one thread here")
    return threads


def _train(blobs: Blobs, batch: int = 1) -> None:
    MLP.published((4, 5, 3), epochs=1, batch=batch, device="host").fit(*blobs)


@pytest.mark.parametrize("batch", [1, 8])
def test_small_products_take_one_thread(blobs: Blobs, most: list[int], batch: int,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def recorded(work: Any) -> Any:
        def function(*arguments: Any) -> Any:
            seen.append(_blas_threads())
            return work(*arguments)

        return function

    for name in ("in_batches", "one_by_one"):
        monkeypatch.setattr(host_updates, name, recorded(getattr(host_updates, name)))
    _train(blobs, batch)
    assert seen == [[1] * len(most)]
    assert _blas_threads() == most
    monkeypatch.setattr(host, "_SMALL", batch * (4 * 5 + 5 * 3) - 1)
    _train(blobs, batch)
    assert seen[1:] == [most]


def test_threads_are_put_back_where_several_train(blobs: Blobs, most: list[int],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of threads is restored even where a second training begins while the first goes on
    and ends after it."""
    online = host_updates.one_by_one
    first_began, second_began, first_ended = (threading.Event() for _ in range(3))

    def in_turns(*arguments: Any) -> list[np.ndarray]:
        if threading.current_thread().name == "first":
            first_began.set()
            second_began.wait(0.5)
        else:
            second_began.set()
            assert first_ended.wait(60)
        return online(*arguments)

    def first() -> None:
        _train(blobs)
        first_ended.set()

    monkeypatch.setattr(host_updates, "one_by_one", in_turns)
    threads = [threading.Thread(target=first, name="first"),
               threading.Thread(target=_train, args=(blobs,))]
    threads[0].start()
    assert first_began.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert _blas_threads() == most
