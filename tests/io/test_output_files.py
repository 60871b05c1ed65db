import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.io import output_files
from tests.cli.command_line import gossamer_cli, save_network, succeeds


@pytest.fixture
def tiny(tmp_path):
    return save_network(tmp_path / "tiny.onnx")


def test_failed_writing_leaves_nothing(tiny, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    (tmp_path / "y.npy").write_bytes(b"older")
    monkeypatch.setattr(output_files.np.lib.format, "write_array",
                        Mock(side_effect=OSError(28, "No space left on device")))
    result = gossamer_cli("run", tiny, "--device", "host", "--input", tmp_path / "x.npy",
                          "--output", tmp_path / "y.npy")
    assert result.exit_code == 2 and "No space left" in result.stderr
    assert (tmp_path / "y.npy").read_bytes() == b"older"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny.onnx", "x.npy", "y.npy"]


def test_the_reason_of_a_failed_write_is_kept(tmp_path):
    resource = pytest.importorskip("resource", reason="limits of POSIX")
    code = ("import resource, sys; from pathlib import Path; import numpy as np; "
            "from gossamer.io.output_files import write; "
            f"resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY})); "
            "write(Path('y.npy'), 'y.npy', {'y': np.zeros(10000)})")
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True)
    assert "File too large" in result.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_output_through_a_link_writes_its_target(tiny, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    (tmp_path / "folder").mkdir()
    (tmp_path / "y.npy").symlink_to(tmp_path / "folder" / "z.npy")
    succeeds("run", tiny, "--device", "host", "--input", tmp_path / "x.npy", "--output",
             tmp_path / "y.npy")
    assert (tmp_path / "y.npy").is_symlink()
    assert np.load(tmp_path / "folder" / "z.npy").shape == (1, 5)


@pytest.mark.parametrize(("place", "expected"), [
    ("a.txt", "--report a.txt: expected a name that ends in .json"),
    ("absent/a.json", "--report absent/a.json: there is no folder absent"),
    ("folder.json", "--report folder.json: is a folder"),
    ("pipe.json", "--report pipe.json: is not a regular file"),
    ("read.json", "--report read.json: is an input file of this command; use another name"),
    ("link.json", "--report link.json: is an input file of this command; use another name"),
    ("locked/a.json", "--report locked/a.json: the folder locked is not writable"),
])
def test_what_no_file_can_take_the_place_of(tmp_path, monkeypatch, place, expected):
    monkeypatch.chdir(tmp_path)
    for folder in ("folder.json", "locked"):
        (tmp_path / folder).mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "read.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("read.json")
    monkeypatch.setattr(output_files.os, "access", lambda path, mode: path.name != "locked")
    with pytest.raises(InputError) as caught:
        output_files.check_file("--report", Path(place), ".json", ["absent.csv", "read.json"])
    assert str(caught.value) == expected


def test_new_files_and_older_ones_can_be_written(tmp_path):
    (tmp_path / "old.json").write_text("{}")
    for name, suffix in (("old.json", ".json"), ("new.json", ".json"), ("new", None)):
        output_files.check_file("--report", tmp_path / name, suffix)
