"""Records of commands with wrong words: exit status and text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import gossamer_cli, save_network
from tests.recorded import Recorded, digest


def test_wrong_words_of_verbs(recorded: Recorded, tmp_path: Path,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Records the errors of verbs that end before any work."""
    monkeypatch.chdir(tmp_path)
    save_network(Path("net.onnx"))
    Path("data.csv").write_text("0,1,2\n1,2,3\n")
    Path("there").write_text("")
    train_words = ["train", "data.csv", "-o", "out.onnx", "--device", "host"]
    found = {}
    for words in (
            ["train"], ["train", "data.csv"], [*train_words, "--task", "some"],
            [*train_words, "--sizes", "3"], [*train_words, "--sizes", "a"],
            [*train_words, "--sizes", "2,2", "--hidden", "3"], [*train_words, "--threshold", "0.5"],
            [*train_words, "--threshold", "2", "--binarise"], [*train_words, "--resume"],
            [*train_words, "--checkpoint", "there"], [*train_words, "--pad", "3"],
            [*train_words, "--schedule", "x"], [*train_words, "--validation", "2"],
            [*train_words, "--demo"], [*train_words, "--impute", "some"],
            [*train_words, "--effort", "some"],
            [*train_words, "--report", "a.txt"], [*train_words, "--report", "out.onnx"],
            ["train", "none.csv", "-o", "out.onnx", "--device", "host"],
            ["prune", "net.onnx", "-o", "a.onnx"], ["prune", "net.onnx", "-o", "a.txt",
                                                    "--sparsity", "0.5"],
            ["prune", "net.onnx", "-o", "a.onnx", "--sparsity", "1"],
            ["prune", "net.onnx", "-o", "net.onnx", "--sparsity", "0.5"],
            ["prune", "net.onnx", "-o", "a.onnx", "--sparsity", "0.5", "--batch", "2"],
            ["prune", "net.onnx", "-o", "a.onnx", "--speed-up", "2", "--sparsity", "0.5"],
            ["prune", "net.onnx", "-o", "a.onnx", "--speed-up", "1"],
            ["prune", "net.onnx", "-o", "a.onnx", "--sparsity", "0.5", "--keep", "none"],
            ["prune", "none.onnx", "-o", "a.onnx", "--sparsity", "0.5"],
            ["prune", "there", "-o", "a.onnx", "--sparsity", "0.5"],
            ["advise", "net.onnx", "--precision", "some"], ["advise", "net.onnx", "--effort", "x"],
            ["advise", "net.onnx", "--speed-up", "1"], ["advise", "there"],
            ["compile", "net.onnx", "--effort", "some"], ["compile", "net.onnx", "--batch", "0"],
            ["compile", "net.onnx", "--tolerance", "1"], ["compile", "none.onnx"],
            ["compile", "net.onnx", "--force", "x"], ["compile", "net.onnx", "-o", "a.txt"],
            ["serve", "net.onnx", "--latency", "0"], ["serve", "net.onnx", "--max-body", "x"],
            ["serve", "net.onnx", "--grace", "inf"], ["serve", "net.onnx", "--preprocess", "x"],
            ["serve", "net.onnx", "net.onnx"], ["serve", "a b"],
            ["detect", "net.onnx", ""], ["detect", "net.onnx", "a.png", "-o", "a.gif"],
            ["detect", "net.onnx", "a.png", "--names", "none"],
            ["detect", "net.onnx", "a.png", "--device", "host,host"],
            ["evaluate", "net.onnx", "none"], ["evaluate", "net.onnx", "data.csv", "--size", "x"],
            ["run", "net.onnx"], ["run", "net.onnx", "--image", "none.png"],
            ["run", "net.onnx", "--input", "none.npy"], ["inspect", "none.onnx"],
            ["convert", "net.onnx", "-o", "a.txt"]):
        result = gossamer_cli(*words)
        text = f"{result.exit_code} {result.stdout} {result.stderr}"
        found[" ".join(words)] = text if len(text) < 300 else f"{text[:200]}... {digest(text)}"
    recorded("cli_wrong_words", found)
