"""Limits on the threads of BLAS."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gossamer.device import blas
from tests.processes import python


class _Library:
    def __init__(self, threads: int) -> None:
        self.threads = threads

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, threads: int) -> None:
        self.threads = threads


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_Library, ...]]:
    """Two libraries in place of those that are loaded: of eight threads and of four."""
    made = _Library(8), _Library(4)
    monkeypatch.setattr(blas, "_libraries", lambda: made)
    yield made
    assert [library.threads for library in made] == [8, 4]


def test_a_limit_holds_within_its_context(libraries: tuple[_Library, ...]) -> None:
    with pytest.raises(KeyError), blas.limited(1):
        assert [library.threads for library in libraries] == [1, 1]
        assert blas.threads() == 8
        raise KeyError
    assert blas.threads() == 8


def test_a_limit_raises_no_number(libraries: tuple[_Library, ...]) -> None:
    with blas.limited(6):
        assert [library.threads for library in libraries] == [6, 4]


def test_the_number_is_put_back_when_the_last_limit_ends(libraries: tuple[_Library, ...]) -> None:
    began, ended = threading.Event(), threading.Event()

    def other() -> None:
        with blas.limited(1):
            began.set()
            assert ended.wait(60)

    thread = threading.Thread(target=other)
    with blas.limited(2):
        thread.start()
        assert began.wait(60)
    assert blas.threads() == 8 and [library.threads for library in libraries] == [1, 1]
    ended.set()
    thread.join()


def test_without_blas_there_is_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_libraries", lambda: ())
    with blas.limited(1):
        assert blas.threads() == 1


def test_the_blas_of_numpy_is_found() -> None:
    usual = blas.threads()
    assert usual >= 1
    with blas.limited(1):
        assert {number for _, number in blas._thread_counts()} <= {1} and blas.threads() == usual
    assert max((number for _, number in blas._thread_counts()), default=1) == usual


def test_a_library_that_is_loaded_within_a_limit_has_those_that_follow(
        monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = _Library(8), _Library(4)
    loaded = [early]
    monkeypatch.setattr(blas, "_libraries", lambda: tuple(loaded))
    with blas.limited(2):
        loaded.append(late)
        with blas.limited(1):
            assert (early.threads, late.threads) == (1, 1)
    assert (early.threads, late.threads) == (8, 4)


def test_the_libraries_of_numpy_and_scipy_are_limited() -> None:
    code = """if True:
        from threadpoolctl import threadpool_info
        from gossamer.device import blas
        import numpy, sys
        def numbers():
            return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()
                    if pool["user_api"] == "blas"}
        usual = numbers()
        with blas.limited(1):
            assert set(numbers().values()) == {1} and "scipy" not in sys.modules
        import scipy.linalg.blas
        assert {**numbers(), **usual} == numbers()
        usual = numbers()
        with blas.limited(1):
            assert set(numbers().values()) == {1} and len(numbers()) == len(usual)
        assert numbers() == usual
        """
    python(code)
