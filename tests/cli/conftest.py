"""A small network, and folders of pictures for it."""

import pytest

from tests.bench.verb import device_name, quick_calls  # noqa: F401
from tests.cli.command_line import save_network
from tests.cli.picture_folders import save_picture


@pytest.fixture
def tiny(tmp_path):
    """A file with a small network for pictures."""
    return save_network(tmp_path / "tiny.onnx")


@pytest.fixture
def folder(tmp_path):
    """Two folders with pictures of the same names, two of which are damaged, and other files."""
    top = tmp_path / "photos"
    for name in ("b", "a", "a/deep"):
        (top / name).mkdir(parents=True)
        for index in range(2 if name == "a/deep" else 20):
            save_picture(top / name / f"{index:02}.png")
    (top / "a" / "07.png").write_bytes(b"nonsense")
    whole = (top / "b" / "03.png").read_bytes()
    (top / "b" / "03.png").write_bytes(whole[:len(whole) // 2])
    for other in ("notes.txt", "a/.hidden.png", "a/list.csv"):
        (top / other).write_text("x")
    return top
