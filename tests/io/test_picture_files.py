import os
from pathlib import Path

import pytest

from gossamer.errors import InputError
from gossamer.io import picture_files
from gossamer.io.picture_files import pictures_in, read_in_order
from gossamer.io.process_pool import ProcessEndedError


def test_pictures_of_all_folders_in_the_order_of_their_paths(tmp_path):
    for name in ("b/1.png", "a/2.JPG", "a/10.jpeg", "c.webp", "a/d/1.ppm", "notes.txt", "a/x.npy",
                 ".git/1.png", "a/.cache.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    os.symlink(tmp_path, tmp_path / "a" / "loop")
    pictures, others = pictures_in(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in pictures] == [
        "a/10.jpeg", "a/2.JPG", "a/d/1.ppm", "b/1.png", "c.webp"]
    assert others == 2


def test_a_folder_without_pictures(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"")
    with pytest.raises(InputError, match=r"has no pictures \(\.bmp, .*\); it has 1 other file$"):
        pictures_in(tmp_path)
    with pytest.raises(InputError, match="absent: cannot be read: No such file"):
        pictures_in(tmp_path / "absent")


def _names(count):
    return [str(index) for index in range(count)]


@pytest.mark.parametrize("count", [0, 1, 99])
@pytest.mark.parametrize("processors", [1, 3])
def test_files_are_read_in_order(count, processors):
    assert list(read_in_order(int, _names(count), processors, 4)) == list(range(count))


def test_processes_read_in_order(monkeypatch):
    monkeypatch.setattr(picture_files, "_PROCESSORS", 2)
    monkeypatch.setattr(picture_files, "_FILES", 99)
    results = list(read_in_order(_own_process, _names(99), 2, 4))
    assert [name for name, _ in results] == _names(99)
    assert os.getpid() not in {process for _, process in results}


def _own_process(file):
    return file, os.getpid()


def test_a_process_that_ends_is_an_error(monkeypatch):
    monkeypatch.setattr(picture_files, "_PROCESSORS", 1)
    monkeypatch.setattr(picture_files, "_FILES", 1)
    with pytest.raises(ProcessEndedError, match="read pictures was ended by signal 9"):
        list(read_in_order(_end_process, ["0"], 1, 0))


def _end_process(file):
    assert Path("/proc/self/oom_score_adj").read_text().strip() == "500", "no process of a pool"
    os.kill(os.getpid(), 9)
