"""The console script: its streams, its exit codes, and signals that end it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from onnx import helper

import gossamer
from gossamer.cli.guard import guarded
from tests.cli.command_line import QUIET_MAIN, fails, save_network, save_photo, script, succeeds


def test_console_script(tmp_path):
    result = script("inspect", tmp_path / "absent.onnx")
    assert result.returncode == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and "absent.onnx" in result.stderr


def test_names_of_strangers_control_no_terminal(tmp_path):
    evil = "conv\x1b[2J\x07\x9b\u202e\u2066\r\nend"
    path, page = tmp_path / "evil.onnx", tmp_path / "page.html"
    save_network(path, nodes=[helper.make_node("Relu", ["x"], [evil], name=evil)],
                 outputs=[(evil, ["N", 3, 8, 8])], weights={})
    printed = ""
    for words in (["inspect", path], ["run", path, save_photo(tmp_path / "a.png"), "--table"],
                  ["compile", path, "--effort", "quick", "--html", page]):
        result = succeeds(*words, *(["--device", "host"] if "inspect" not in words else []))
        printed += result.stdout + result.stderr
    texts = (printed, page.read_text(), str(gossamer.compile(path, "host").report()))
    for text in texts:
        assert "conv\\x1b[2J\\x07\\x9b\\u202e\\u2066" in text
        assert [c for c in text if not c.isprintable() and c != "\n"] == []


def test_as_a_module(tiny):
    """`python -m gossamer` works where the script is not on the path."""
    result = subprocess.run([sys.executable, "-m", "gossamer", "inspect", tiny],
                          capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, script("inspect", tiny).stdout)


@pytest.mark.parametrize("words, expected", [
    ("run", "error: missing argument 'MODEL'; see `gossamer run --help`"),
    ("walk", "error: no such command 'walk'; see `gossamer --help`"),
    ("cache lst", "error: no such command 'lst'; did you mean 'list'?; see `gossamer cache"),
    ("run x --outpt y", "error: no such option: --outpt; did you mean '--output'?; see `gossamer"),
])
def test_wrong_usage_is_one_line_and_exit_code_2(words, expected):
    result = script(*words.split())
    assert result.returncode == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(expected)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", ["--help", "--version", "cache list"])
def test_full_standard_output(words):
    with open("/dev/full", "w") as full:
        result = script(*words.split(), stdout=full)
    assert result.returncode == 2
    assert result.stderr == "error: standard output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_results_that_cannot_be_printed_are_not_written_either(tiny, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    with open("/dev/full", "w") as full:
        result = script("run", tiny, "--device", "host", "--input", tmp_path / "x.npy", "--output",
                      tmp_path / "y.npy", stdout=full)
    assert result.returncode == 2 and not (tmp_path / "y.npy").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
@pytest.mark.parametrize("redirected", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(redirected):
    command = Path(sys.executable).with_name("gossamer")
    result = subprocess.run(f"{command} cache list {redirected}", shell=True, capture_output=True,
                          text=True)
    assert result.returncode == 0 and result.stderr == ""


def test_characters_that_standard_output_lacks_are_replaced(tmp_path):
    path = save_network(tmp_path / "n.onnx", weights={}, outputs=(("y", None),),
                        nodes=[helper.make_node("Relu", ["x"], ["y"], name="größe\nneu")])
    result = script("inspect", path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.splitlines()[1].startswith("gr??e\\nneu")


@pytest.mark.parametrize("words", ["--help", "cache list"])
def test_reader_that_leaves_is_no_fault(words):
    command = Path(sys.executable).with_name("gossamer")
    with subprocess.Popen([command, *words.split()], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141 and errors == ""


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes and signals of POSIX")
def test_a_signal_ends_the_script_with_130(tiny, tmp_path):
    os.mkfifo(tmp_path / "x.npy")
    code = ("import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from gossamer.cli.console import main; main()")
    with subprocess.Popen(
        [sys.executable, "-c", code, "run", tiny, "--input", tmp_path / "x.npy"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:
        writer = None
        while writer is None and process.poll() is None:
            # opens as soon as the process waits for the array
            with contextlib.suppress(OSError):
                writer = os.open(tmp_path / "x.npy", os.O_WRONLY | os.O_NONBLOCK)
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        os.close(writer)
    assert process.returncode == 130
    assert errors.splitlines() == ["error: interrupted"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_signal_during_the_imports_ends_the_script_with_130():
    code = ("import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'gossamer.model.load':"
            " os.kill(os.getpid(), signal.SIGINT)\n"
            "sys.meta_path.insert(0, Finder())\n"
            "from gossamer.cli.console import main; main()")
    result = subprocess.run([sys.executable, "-c", code, "devices"], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "error: interrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_termination_that_an_import_turns_into_an_error_ends_with_143():
    @guarded
    def verb() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("half of a module") from None

    with pytest.raises(typer.Exit) as ended:
        verb()
    assert ended.value.exit_code == 128 + signal.SIGTERM


HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


def arguments(verb: str, folder: Path) -> list[str]:
    if verb == "bench":
        return ["bench", "gemm", "--device", "host", "--against", "none"]
    table = np.random.default_rng(0).random((2000, 9)).round(3)
    table[:, -1] = np.arange(2000) % 3
    np.savetxt(folder / "samples.csv", table, delimiter=",", fmt="%g")
    return ["train", str(folder / "samples.csv"), "--epochs", "100000", "--device", "host",
            "-o", str(folder / "net.onnx")]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX terminals and signals")
@pytest.mark.parametrize("verb", ["bench", "train"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_cursor_is_shown_again(verb: str, number: signal.Signals, tmp_path: Path) -> None:
    terminal, end = os.openpty()
    environment = {**os.environ, "GOSSAMER_CACHE": str(tmp_path / "cache"), "TERM": "xterm"}
    shown, is_sent = b"", False
    with subprocess.Popen(
            [sys.executable, "-c", QUIET_MAIN, *arguments(verb, tmp_path)], env=environment,
            stderr=end, stdout=end) as process:
        os.close(end)
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while part := os.read(terminal, 4096):
                shown += part
                if not is_sent and HIDDEN in shown:
                    is_sent = True
                    process.send_signal(number)
        process.wait(60)
    os.close(terminal)
    assert is_sent, shown.decode()
    assert process.returncode == 128 + number, shown.decode()
    assert shown.rfind(SHOWN) > shown.rfind(HIDDEN)
    assert b"Traceback" not in shown
    assert not (tmp_path / "net.onnx").exists()


LONG = "y" * 300
BAD = [
    (f"tiny.onnx --device host --input x.npy --output {LONG}.npy", ["--output", "too long"]),
    (f"tiny.onnx --device host --input {LONG}.npy", ["--input", "too long"]),
    (f"{LONG}.onnx --device host --input x.npy", ["too long"]),
    (f"tiny.onnx --device host --preprocess unit --image {LONG}.png", ["too long"]),
    ("tiny.onnx --input x.npy --device cuda:99", ["cuda:99"]),
    ("tiny.onnx --input x.npy --device abacus", ["abacus"]),
]


@pytest.mark.parametrize("words, expected", BAD, ids=[words for words, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(words, expected, tiny, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    np.save("x.npy", np.zeros((1, 3, 8, 8), np.float32))
    before = sorted(os.listdir())
    line = fails(2, "run", *words.split(" "))
    for word in expected:
        assert word in line, line
    assert sorted(os.listdir()) == before
