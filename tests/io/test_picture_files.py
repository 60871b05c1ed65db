import os

import pytest

from gossamer.errors import InputError
from gossamer.io.images import pictures_in


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
