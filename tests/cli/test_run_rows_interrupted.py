"""The verb `run` on pictures that cannot be run, on a full disk, and where it is ended."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command_line import QUIET_MAIN, fails, gossamer_cli, succeeds
from tests.cli.picture_folders import are_same, command_of, picture_files, rows_of, save_picture
from tests.processes import runs, until


def test_a_folder_of_damaged_pictures(tiny, tmp_path):
    (tmp_path / "damaged").mkdir()
    for index in range(2):
        (tmp_path / "damaged" / f"{index}.png").write_bytes(b"x")
    result = gossamer_cli(*command_of(tiny, tmp_path / "damaged", "-o", tmp_path / "rows.csv"))
    assert result.exit_code == 2 and not (tmp_path / "rows.csv").exists()
    assert result.stderr.splitlines()[-1].endswith(
        "0.png: not an image that can be read; expected PNG, JPEG, BMP, GIF, WEBP, PPM; none of 2 "
        "can be read")


def test_rows_of_a_folder_that_cannot_be_written(tiny, folder, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert "cannot be written to" in fails(2, *command_of(tiny, folder, "-o", locked / "rows.csv"))


def _many(tmp_path, count):
    folder = tmp_path / "photos"
    folder.mkdir()
    save_picture(folder / "0.png")
    for index in range(1, count):
        (folder / f"{index:04}.png").write_bytes((folder / "0.png").read_bytes())
    return folder


def _start(words, program=QUIET_MAIN, **options):
    return subprocess.Popen([sys.executable, "-c", program, *map(str, words)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "npy"])
def test_a_full_disk_leaves_rows_to_continue_or_nothing(tiny, tmp_path, suffix):
    folder, out = _many(tmp_path, 300), tmp_path / f"rows.{suffix}"

    def small_files():
        # beyond this size writing fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    words = command_of(tiny, folder, "--batch", 4, "-o", out)
    process = _start(words, preexec_fn=small_files)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert f"error: --output {out}: cannot be written: File too large" in err
    assert ("--resume continues them" in err) == (suffix != "npy")
    if suffix == "npy":
        assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "tiny.onnx"]
        return
    assert 0 < out.stat().st_size <= 4096
    succeeds(*words, "--resume")
    part = out.read_bytes()
    succeeds(*words)
    assert are_same(part, out.read_bytes()) and part.count(b"\n") == 300 + (suffix == "csv")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_is_continued(tiny, tmp_path, name):
    folder, out = _many(tmp_path, 3000), tmp_path / "rows.jsonl"
    words = command_of(tiny, folder, "--batch", 4, "-o", out)
    process = _start(words)
    deadline = time.monotonic() + 60
    while not (out.exists() and out.stat().st_size > 2000) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if name == "SIGINT" else 143), err
    assert err.splitlines()[-1] == f"error: {'interrupted' if name == 'SIGINT' else 'terminated'}"
    rows = rows_of(out)
    assert 0 < len(rows) < 3000
    result = succeeds(*words, "--resume")
    assert f"{len(rows)} rows were there already" in result.stdout
    assert [row["file"] for row in rows_of(out)] == list(map(str, picture_files(folder)))


def test_a_run_that_is_killed_leaves_rows_to_continue_and_no_process(tiny, tmp_path):
    folder, out = _many(tmp_path, 3000), tmp_path / "rows.jsonl"
    words = command_of(tiny, folder, "--batch", 4, "-o", out)
    process = _start(words, "from gossamer.io import picture_batches as module; "
                            f"module._PROCESSORS = module._FILES = 1; {QUIET_MAIN}")
    until(lambda: out.exists() and out.stat().st_size > 2000)
    readers = [int(pid) for task in Path(f"/proc/{process.pid}/task").iterdir()
               for pid in (task / "children").read_text().split()]
    process.kill()
    process.communicate(timeout=60)
    assert readers
    until(lambda: not any(map(runs, readers)))
    assert 0 < out.read_text().count("\n") < 3000
    succeeds(*words, "--resume")
    assert [row["file"] for row in rows_of(out)] == list(map(str, picture_files(folder)))
