import os
import stat
import subprocess
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from gossamer.device import kernel_cache
from gossamer.device.kernel_cache import cache_folder, write_atomically
from gossamer.errors import GossamerWarning
from gossamer.plan.store.database import Database


def cached(key: Sequence[str], build: Callable[[], bytes]) -> bytes:
    """Returns the result of build() for a key, or what the cache keeps of it."""
    return kernel_cache.cached(key, build)[0]


@pytest.fixture
def folder(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kernel_cache, "_warned", set())
    monkeypatch.setattr(kernel_cache, "_unwritten", OrderedDict())
    monkeypatch.setattr(kernel_cache, "_unchecked", kernel_cache._CHECK_EVERY)
    return own_cache


def test_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("GOSSAMER_CACHE")
    assert cache_folder() == Path("/b/gossamer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/c/.cache/gossamer")


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_only_the_owner_reads_the_cache(folder: Path) -> None:
    cached(("key",), lambda: b"binary")
    base = Database(folder / "tuning" / "host.sqlite", "host", {}, {})
    base.add("plans", {"key": 1})
    assert base.is_kept
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


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


def _make(folder: Path, names: str, age: int) -> None:
    """Writes an entry of 100 bytes for each letter, all last used `age` seconds ago."""
    for name in names:
        before = set(_files(folder))
        assert cached((name,), lambda: b"x" * 68) == b"x" * 68
        (fresh,) = set(_files(folder)) - before
        then = time.time() - age
        os.utime(fresh, (then, then))


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "kernels").glob("[!.]*"))


def _built(names: str) -> str:
    """Returns the keys whose entries are missing."""
    missing = []
    for name in names:
        cached((name,), lambda name=name: missing.append(name) or b"x" * 68)  # type: ignore[misc]
    return "".join(missing)


@pytest.fixture
def small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for five entries, whose size is checked after each write."""
    monkeypatch.setattr(kernel_cache, "MOST_BYTES", 500)
    monkeypatch.setattr(kernel_cache, "_CHECK_EVERY", 1)
    return folder


def test_what_was_used_least_lately_goes_first(small: Path) -> None:
    _make(small, "ab", age=400)
    _make(small, "cd", age=300)
    _make(small, "e", age=200)
    assert _built("a") == "" and len(_files(small)) == 5
    _make(small, "f", age=100)
    assert len(_files(small)) == 5
    assert _built("acdef") == ""
    assert _built("b") == "b" and len(_files(small)) == 5


def test_the_folder_is_looked_at_from_time_to_time(small: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_CHECK_EVERY", 150)
    monkeypatch.setattr(kernel_cache, "_unchecked", 0)
    _make(small, "abcdefg", age=100)
    assert len(_files(small)) == 6


def test_what_others_have_removed_or_only_begun_is_no_error(
        small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _make(small, "abcde", age=100)
    young, old = (small / "kernels" / f".partial-{name}" for name in ("young", "old"))
    for path in (young, old):
        path.write_bytes(b"x" * 1000)
    os.utime(old, (1.0, 1.0))
    unlink = Path.unlink

    def late(path: Path, missing_ok: bool = False) -> None:
        unlink(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", late)
    assert cached(("f",), lambda: b"x" * 68) == b"x" * 68
    assert len(_files(small)) == 5
    assert young.exists() and not old.exists()


def test_entries_that_cannot_be_removed_do_not_stop_the_others(
        small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _make(small, "a", age=500)
    _make(small, "bcde", age=100)
    oldest = min(_files(small), key=lambda path: path.stat().st_mtime)
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == oldest:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    cached(("f",), lambda: b"x" * 68)
    assert oldest in _files(small) and len(_files(small)) == 5


def test_processes_that_share_a_small_folder(small: Path) -> None:
    program = """if True:
        from gossamer.device import kernel_cache
        kernel_cache.MOST_BYTES, kernel_cache._CHECK_EVERY = 500, 1
        for turn in range(3):
            for number in range(40):
                data = number.to_bytes(68, "big")
                assert kernel_cache.cached((str(number),), lambda: data)[0] == data
    """
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", program]) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert 0 < len(_files(small)) <= 5


def test_forgotten_entry_is_built_again(folder: Path) -> None:
    cached(("key",), lambda: b"old")
    kernel_cache.forget(("key",))
    kernel_cache.forget(("never there",))
    assert cached(("key",), lambda: b"new") == b"new"


def test_folder_that_cannot_be_written_warns_once(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    with pytest.warns(GossamerWarning, match=f"{folder}.* cannot be written"):
        assert cached(("key",), lambda: b"built") == b"built"
    with warnings.catch_warnings(action="error"):
        assert cached(("other",), lambda: b"other") == b"other"


def test_what_cannot_be_written_is_kept_for_this_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("a file where the folder should be")
    monkeypatch.setattr(kernel_cache, "_MOST_UNWRITTEN", 12)
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
    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.warns(GossamerWarning, match="No space left"):
        assert not write_atomically(target, b"second")
    assert target.read_bytes() == b"first"
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_the_caller_is_told_what_came_from_the_cache(
        folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_cache.cached(("a",), lambda: b"built") == (b"built", False)
    assert kernel_cache.cached(("a",), lambda: b"again") == (b"built", True)
    monkeypatch.setattr(kernel_cache, "write_atomically", lambda path, data: False)
    assert kernel_cache.cached(("b",), lambda: b"built") == (b"built", False)
    assert kernel_cache.cached(("b",), lambda: b"again") == (b"built", True)
