"""What the command line says of wrong words, files, shapes and options: one line each."""

from __future__ import annotations

import functools
import os
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gossamer.cli.app import VERBS, Verb
from gossamer.plan.tune.tuner import Tuner
from tests.cli.verb_uses import (
    OPTIONS,
    type_of,
    usage,
    without_suites,  # noqa: F401
    working_words,
    wrong_words,
)
from tests.golden import Golden

OTHERS = {"--device", "--host", "--ray", "--forced"}
"""Options whose wrong values get a message that depends on the machine or lists every algorithm."""
ON_HOST = {"run", "evaluate", "detect", "bench", "compile", "train", "advise", "serve"}
SHARES = {".csv": ["", "a, 0.5", "first, 1", "first, nan", "first, x", "first, 0.5\nfirst, 0.6",
                   "layer, sparsity\nfirst", "\nfirst, 90", 'first, "0.5\n', "# nothing", "\udcff",
                   "frist, 0.5"],
          ".json": ["[]", '{"first": 1}', '{"first": true}', '{"first": 0.5, "first": 0.6}', "{}",
                    '{"first": 0.5,\n"v"}', '{"first": [0.5]}', '{"first": null}',
                    '{"first": 1' + "0" * 400 + "}", '{"first": 1' + "0" * 5000 + "}",
                    '{"first": ' + "[" * 200_000 + "]" * 200_000 + "}"]}
CASES = {
    "inspect": ["''", "none.onnx", "photos", "notes.txt", "none.cfg", "n.onnx --outputs y,z",
                "a.plan", "open.onnx", *[f"open.onnx --shape {shape}" for shape in (
                    "3,4", "4,4,5", "3,-1,5", "z=3,4,5", "3,4,5 --shape 3,4,5")]],
    "run": [
        "n.onnx", "n.onnx p.png --input three.npy", "n.onnx --image ''", "n.onnx none.png",
        "n.onnx p.png --labels two.txt", "n.onnx photos -o a.txt", "two.onnx photos -o a.npy",
        "n.onnx empty", "n.onnx texts", "n.onnx photos none.png", "n.onnx photos --resume",
        "n.onnx photos -o none/a.csv", "n.onnx photos four.csv", "n.onnx four.csv",
        "two.onnx four.csv", "rows.onnx four.csv p.png",
        *[f"rows.onnx {name}.csv" for name in ("gap", "word", "label", "short", "blank")],
        "rows.onnx four.csv --grey", "rows.onnx four.csv --label zzz",
        "rows.onnx five.csv --label 7", "rows.onnx p.png", "n.onnx --image notes.txt",
        *[f"rows.onnx four.csv -o {name} --resume" for name in ("odd.jsonl", "odd.csv", "a.npy")],
        *[f"n.onnx p.png {more}" for more in (
            "-o out.txt", "-o none/a.npy", "--resume", "--label a", "--size 0", "--size 0x1",
            "--size 1x2x3", "--size 8x12", "--resize 0", "--resize 7", "--resize 16385",
            "--mean 1,2", "--mean nan", "--mean 1,,2", "--std 0", "--std 1,inf,2", "--scale nan",
            "--grey", "--bgr --grey")], "two.onnx p.png", "open.onnx p.png --size 16385",
        *[f"n.onnx --input {name}.npy" for name in ("none", "three", "objects")],
        *[f"n.onnx --input image.npy -o {name}" for name in ("''", "link/image.npy", "pipe.npy")],
        "n.onnx --input notes.txt", "n.onnx --input ''",
        *[f"rows.onnx --input {name}" for name in (
            "row.npy", "double.npy", "scalar.npy", "z=four.npy", "x0=", "other.npz")],
        *[f"two.onnx --input {name}" for name in (
            "three.npy", "x0=three.npy", "x0=three.npy --input x1=five.npy", "other.npz",
            "x0=three.npy --input x0=three.npy")], "text.onnx --input three.npy",
        "none.plan p.png", "notes.plan p.png", "a.plan p.png --shape 3,8,8",
        "a.plan p.png --weights w", "a.plan p.png --outputs y"],
    "evaluate": [
        "n.onnx none", "n.onnx empty", "n.onnx s.csv", "n.onnx s.csv --size 8", "two.onnx five.csv",
        "n.onnx p.png", "n.onnx pictures.npz", "rows.onnx nine.csv",
        "rows.onnx five.csv --label zzz", "rows.onnx five.csv --labels two.txt",
        "rows.onnx labels.csv", "rows.onnx shaped.npz"],
    "detect": [
        *[f"d.onnx p.png {more}" for more in (
            "--threshold 2", "--nms -1", "--threshold nan", "--names one.txt", "photos/0 -o a.png",
            "--device host,host", "--names a.json -o a.json",
            *[f"-o {name}" for name in ("''", "a.gif", "p.png", "none/a.json", "notes", "a.2")])],
        "d.onnx photos/0 -o photos/0", "d.onnx p.png --shape 3,9,9", "a.plan p.png --weights w",
        "d.onnx ''", "d.onnx empty", "n.onnx p.png"],
    "bench": ["none.onnx", "mobilenet", "d.onnx --effort some", "n.onnx --against some",
              *[f"n.onnx {more}" for more in (
                  "--batch 0", "--batch 1,,8", "--precision fp32,", "--seconds 0",
                  "--seconds nan")]],
    "serve": [
        "n.onnx n.onnx", "x=n.onnx x=d.onnx", "'a b'", "=n.onnx", ".a=n.onnx", "n.onnx --grace inf",
        "n.onnx --max-body 0",
        *[f"n.onnx --latency {time}" for time in ("0", "-1", "1e3", "1000000", "5m", "ms")]],
    "compile": ["none.onnx", "open.onnx", "rows.onnx --calibration x0=row.npy", *[
        f"n.onnx {more}" for more in (
            "--batch 1,0", "--sparse-threshold 0", "--sparse-threshold 1", "--budget 0",
            "--budget inf", "--tolerance 1", "--threads 0", "--calibration three.npy",
            "--calibration z=three.npy", "--calibration notes.txt", "--batch ''", "--shape 4,8,8",
            "--calibration image.npy --tolerance 0", "--force first=magic",
            "--force first=host_popcnt",
            "--force =direct", "--force first=", "--force firs=direct", "--explain firs",
            "-o none/a.plan", "--html a.plan")]],
    "convert": ["n.onnx -o a.txt", "n.onnx -o n.onnx", "n.onnx -o none/a.onnx", "none -o a.onnx"],
    "prune": [
        *[f"n.onnx -o a.onnx {more}" for more in (
            "", "--sparsity 1", "--sparsity -0.1", "--sparsity nan", "--sparsity 0.5 --keep fir",
            "--sparsity 0.5 --batch 2", "--sparsity 0.5 --speed-up 2", "--speed-up 1",
            "--speed-up inf", "--speed-up 2 --scope layer", "--speed-up 2 --pattern channels",
            "--speed-up 2 --precision some", "--per-layer none.csv", "--sparsity 0.5 --device host",
            "--per-layer shares1.csv --scope layer", "--pattern 2:4 --sparsity 0.9",
            "--pattern channels", "--pattern channels --sparsity 0.5 --scope global",
            *[f"--per-layer shares{index}.csv" for index in range(len(SHARES[".csv"]))],
            *[f"--per-layer shares{index}.json" for index in range(len(SHARES[".json"]))])],
        *[f"n.onnx -o {name} --sparsity 0.5" for name in (
            "n.onnx", "link.onnx", "none/a.onnx", "folder.onnx")],
        *[f"{name} -o a.onnx --sparsity 0.5" for name in ("notes.txt", "none.onnx", "rows.onnx")]],
    "advise": ["none.onnx", "n.onnx --speed-up 1", "n.onnx --speed-up nan", "n.onnx --plot a.txt"],
    "train": [
        "", "s.csv", *[f"s.csv -o out.onnx {more}" for more in (
            "--sizes 3", "--sizes 9,0,3", "--sizes 9,2", "--sizes 5,3",
            "--sizes 9,3 --hidden 3", "--hidden 0", "--lr 0", "--momentum 1 --optimiser sgd",
            "--momentum 0.5", "--weight-decay -1", "--target-error -1", "--threshold 0.5",
            "--threshold 0 --binarise", "--threshold 1.1 --binarise", "--resume",
            "--checkpoint notes.txt", "--checkpoint notes.txt --resume", "--pad 0x1", "--pad 2x2",
            "--schedule step:0:0.3", "--schedule step:4:-1", "--validation 0", "--validation 1",
            "--validation nan", "--label 11", "--demo", "--report out.onnx",
            "--curve s.png --report s.png", "--task regression --sizes 9,2",
            "--task regression --sizes 8,1", "--lr nan", "--binarise", "--scale", "--label last",
            "--validation ''", "--resume --checkpoint none.ckpt", "--checkpoint s.csv",
            "--checkpoint out.onnx", "--threshold nan --binarise", "--sizes 9,6,1",
            f"--sizes 9,{'9' * 21},3")], "s.csv -o folder.onnx", "--demo --hidden 8 -o demo",
        *[f"{name} -o out.onnx --task regression" for name in ("photos", "cats.csv --label first")],
        "ones.csv -o out.onnx", "cats.csv -o out.onnx",
        "s.csv -o none/a.onnx", "empty -o out.onnx", "five.csv -o out.onnx --validation 0.01"],
    "cache": ["import none", "import photos", "export -"]}


def save_relus(path: str, *shapes: tuple[int | str, ...], dtype: int = TensorProto.FLOAT) -> None:
    """Save a network that computes ReLU, or nothing of texts, of each of its inputs."""
    op = "Identity" if dtype == TensorProto.STRING else "Relu"
    names = [(f"x{index}", f"y{index}") for index in range(len(shapes))]
    inputs, outputs = ([helper.make_tensor_value_info(pair[end], dtype, shape)
                        for pair, shape in zip(names, shapes, strict=True)] for end in (0, 1))
    nodes = [helper.make_node(op, [x], [y]) for x, y in names]
    onnx.save(helper.make_model(helper.make_graph(nodes, "relus", inputs, outputs),
                                opset_imports=[helper.make_opsetid("", 17)]), path)


def save_files() -> None:
    save_relus("rows.onnx", ("N", 4))
    save_relus("two.onnx", ("N", 3), ("N", 2, 2))
    save_relus("open.onnx", ("N", 3, "H", "W"))
    save_relus("text.onnx", ("N", 3), dtype=TensorProto.STRING)
    for name, shape in {"three": (4, 3), "four": (4, 4), "five": (5, 2, 2), "row": (4,),
                        "image": (1, 3, 8, 8), "scalar": ()}.items():
        np.save(name, np.ones(shape, np.float32))
    np.save("double", np.ones((4, 4)))
    np.savez("other", z=np.ones((4, 3), np.float32))
    for name, shape in {"shaped": (3, 2, 3), "pictures": (3, 2, 3, 3)}.items():
        np.savez(name, x=np.ones(shape, np.float32), y=np.arange(3))
    texts = {"notes.txt": "some words\n", "notes.plan": "some words\n", "notes": "",
             "one.txt": "cat\n", "two.txt": "cat\ndog\ncow\n", "a.json": "", "odd.jsonl": "[]\n",
             "odd.csv": "name,y\n1,2\n", "four.csv": "0,1,2,3\n4,5,6,7\n", "a.plan": "",
             "five.csv": "0,0,1,2,3\n1,4,5,6,7\n", "labels.csv": "cat,1,2,3,4\nx,1,2,3,4\n",
             "nine.csv": "0,1,2,3,4\n9,1,2,3,4\n", "ones.csv": "1,2,3\n1,4,5\n",
             "cats.csv": "cat,2,3\ncat,4,5\n", "gap.csv": "1,2,3,4\n5,,7,8\n",
             "word.csv": "1,2,3,4\n5,x,7,8\n", "label.csv": "1,2,3,4\nz,6,7,8\n",
             "short.csv": "1,2,3,4\n5,6\n", "blank.csv": "", "texts/a.txt": ""}
    texts |= {f"shares{index}{suffix}": text for suffix, each in SHARES.items()
              for index, text in enumerate(each)}
    for name in ("empty", "texts", "folder.onnx"):
        Path(name).mkdir()
    for name, text in texts.items():
        Path(name).write_bytes(os.fsencode(text))
    np.save("objects", np.array([{}]), allow_pickle=True)
    os.mkfifo("pipe.npy")
    Path("link.onnx").symlink_to("n.onnx")
    Path("link").symlink_to(".")


command = functools.cache(lambda name, make=Verb.command: make(VERBS[name], name))
"""Makes the command of a verb once, which takes longer than to refuse its words."""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], list[object]]:
    """A folder with files, and words with which each verb would work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    monkeypatch.setattr(Verb, "command", lambda self, name: command(name))
    # a command that is not refused ends here, before it measures for minutes
    monkeypatch.setattr("gossamer.bench.call_contest.run", None)
    monkeypatch.setattr(Tuner, "measure_all", None)
    save_files()
    return working_words(Path())


def test_errors_of_the_command_line(golden: Golden,
                                    words: dict[tuple[str, ...], list[object]]) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    found: dict[str, dict[str, str]] = {}
    before = contents()
    for verb, option in OPTIONS:
        if type_of(verb, option) is not bool and option.opts[0] not in OTHERS:
            for given in wrong_words(verb, option):
                case = " ".join([*verb[1:], *given])
                found.setdefault(verb[0], {})[case] = error(*verb, *words[verb], *given)
    for verb_name, cases in CASES.items():
        host = ["--device", "host"] * (verb_name in ON_HOST)
        for case in cases:
            device = [] if "--device" in case else host
            found.setdefault(verb_name, {})[case] = error(verb_name, *device, *shlex.split(case))
    assert contents() == before
    for verb_name, rows in found.items():
        golden.table("errors.txt", f"command line: {verb_name}", rows)


def contents() -> dict[Path, bytes]:
    """Return what the files beside the cache hold, which refused commands leave as they are."""
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def error(*words: object) -> str:
    """Return the one error of a command that has to fail, without what depends on the machine."""
    result = usage(*words)
    assert result.returncode == 2 and not result.stdout, (words, result.stdout, result.stderr)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return line.removeprefix("error: ").replace(str(Path.cwd()), "FOLDER")
