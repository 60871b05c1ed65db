import os
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.device import kernel_cache
from gossamer.device.kernel_cache import cache_folder, cached, write_atomically
from gossamer.errors import GossamerWarning


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "_warned", set())
    monkeypatch.setattr(kernel_cache, "_unwritten", OrderedDict())
    yield tmp_path / "cache"


def test_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("GOSSAMER_CACHE")
    assert cache_folder() == Path("/b/gossamer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/c/.cache/gossamer")


def test_builds_once_for_each_key(folder: Path) -> None:
    built = []

    def build() -> bytes:
        built.append(1)
        return b"binary %d" % len(built)

    assert cached(("source", "sm_90"), build) == b"binary 1"
    assert cached(("source", "sm_90"), build) == b"binary 1"
    assert cached(("source", "sm_80"), build) == b"binary 2"
    assert cached(("sources", "m_90"), build) == b"binary 3"


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_damaged_entry_is_built_again(folder: Path, damage: bytes) -> None:
    cached(("key",), lambda: b"good")
    (entry,) = (folder / "kernels").iterdir()
    entry.write_bytes(damage)
    assert cached(("key",), lambda: b"good again") == b"good again"
    assert cached(("key",), lambda: b"never") == b"good again"


def test_forgotten_entry_is_built_again(folder: Path) -> None:
    cached(("key",), lambda: b"old")
    kernel_cache.forget(("key",))
    kernel_cache.forget(("never there",))
    assert cached(("key",), lambda: b"new") == b"new"


def test_folder_that_cannot_be_written_warns_once(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    with pytest.warns(GossamerWarning, match=f"{folder}.* cannot be written"):
        assert cached(("key",), lambda: b"built") == b"built"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cached(("other",), lambda: b"other") == b"other"


def test_what_cannot_be_written_is_kept_for_this_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("a file where the folder should be")
    monkeypatch.setattr(kernel_cache, "_MOST_KEPT", 12)
    with pytest.warns(GossamerWarning):
        assert cached(("a",), lambda: b"built") == b"built"
    assert cached(("a",), lambda: b"again") == b"built"
    cached(("b",), lambda: b"other")
    assert cached(("a",), lambda: b"again") == b"built"
    cached(("c",), lambda: b"third")  # there is room for two: b was used before a
    assert cached(("a",), lambda: b"again") == b"built"
    assert cached(("b",), lambda: b"again") == b"again"
    kernel_cache.forget(("a",))
    assert cached(("a",), lambda: b"new") == b"new"


def test_failed_write_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = folder / "file"
    assert write_atomically(target, b"first")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(GossamerWarning, match="No space left"):
        assert not write_atomically(target, b"second")
    assert target.read_bytes() == b"first"
    assert [path.name for path in folder.iterdir()] == ["file"]
