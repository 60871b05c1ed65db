"""Records of how the command line turns its texts and files into the inputs of a network."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gossamer.cli import (
    arguments,
    labelled_inputs,
    photo_options,
    row_files,
    row_inputs,
    run_inputs,
    run_output,
)
from gossamer.cli.photo_options import PhotoOptions
from gossamer.cli.row_files import Row
from gossamer.io.images import PRESETS
from gossamer.model.graph import Graph, ValueInfo
from gossamer.model.input_format import InputFormat
from gossamer.model.metadata import Column, ModelMetadata
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome, rounded

Shape = tuple[int | None, ...]


def graph_of(*shapes: Shape, dtype: str = "float32", given: InputFormat | None = None,
             outputs: tuple[Shape, ...] = ((None, 3),), **metadata: Any) -> Graph:
    """Returns a network whose inputs x0, x1 and so on have these shapes."""
    return Graph("net", [ValueInfo(f"x{index}", shape, dtype, given=given)
                         for index, shape in enumerate(shapes)],
                 [ValueInfo(f"y{index}", shape) for index, shape in enumerate(outputs)], [], {},
                 metadata=ModelMetadata(**metadata))


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets batches be run in parts, as the networks of these tests have no nodes."""
    monkeypatch.setattr(run_inputs, "mixing_node", lambda graph, size: None)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The notices since the list was last emptied."""
    notices: list[str] = []
    monkeypatch.setattr("gossamer.io.terminal.notice", lambda message, kind="notice": (
        notices.append(f"{kind} {' '.join(str(message).split())}")))
    yield notices


def told(said: list[str], text: str, hidden: Path | None = None) -> str:
    """Returns a text and the notices, which are removed from the list."""
    result = " | ".join([text, *said])
    said.clear()
    return result.replace(str(hidden), "FOLDER") if hidden else result


def prepared(made: Any) -> str:
    return (f"{made.size} {made.resize} {made.channels} {made.scale:.6g} {as_text(made.mean)} "
            f"{as_text(made.std)} {made.rounding}")


SHAPES: tuple[Shape, ...] = (
    (None, 3, 224, 224), (None, 3, None, None), (None, 3, None, 9), (None, 1, 28, 28),
    (None, 784), (None, 2352), (None, 783), (None, 3, 8, 12), (None, 4, 8, 8), (None, 2, 8, 8),
    (None, None, 8, 8), (None, 3, 8), (None, 0), (None, None), (None, 1, None, None))
OPTIONS = (
    PhotoOptions(), PhotoOptions("caffe"), PhotoOptions("binary"), PhotoOptions("unit"),
    PhotoOptions("some"), PhotoOptions(size="8x12"), PhotoOptions(size="28"),
    PhotoOptions(grey=True), PhotoOptions(bgr=True), PhotoOptions(grey=True, size="28"),
    PhotoOptions("imagenet", grey=True), PhotoOptions("imagenet", bgr=True),
    PhotoOptions("imagenet", grey=True, mean="0.5"), PhotoOptions("caffe", bgr=True),
    PhotoOptions("imagenet", grey=True, mean="0.5", std="2"), PhotoOptions(scale=0.5),
    PhotoOptions(resize=12), PhotoOptions(resize=7), PhotoOptions(mean="1,2,3", std="2"),
    PhotoOptions("binary", bgr=True))


def test_preparations_of_photos(recorded: Recorded, said: list[str]) -> None:
    found = {}
    for shape, (number, options) in itertools.product(SHAPES, enumerate(OPTIONS)):
        text = told(said, outcome(photo_options.preprocessing, "net.onnx", graph_of(shape),
                                  options, text=prepared))
        given = "".join(f"{name}={value} " for name, value in vars(options).items() if value)
        if len(text) > 90:
            text = f"{text[:70]}... {digest(text)}"
        found[f"{number} {shape} {given}"] = text
    recorded("cli_preparations", found)


def test_options_of_photos(recorded: Recorded, said: list[str]) -> None:
    """Records each option at and beyond its bounds, and what a network's metadata ask for."""
    found = {}

    def add(case: str, graph: Graph, options: PhotoOptions) -> None:
        found[case] = told(said, outcome(photo_options.preprocessing, "net.onnx", graph, options,
                                         text=prepared))

    free = graph_of((None, 3, None, None))
    for size in ("", "0", "1", "0x1", "1x0", "2x3", "1x2x3", "x", "a", "-1", "16384", "16385",
                 "1x16385", "16384x16384", "16385x1"):
        add(f"size {size}", free, PhotoOptions(size=size))
    for size in ("8x12", "8x11", "7x12", "12x8", "8"):
        for shape in ((None, 3, 8, 12), (None, 3, None, 12), (None, 3, 8, None), (None, 288)):
            add(f"size {size} for {shape}", graph_of(shape), PhotoOptions(size=size))
    for resize in (-1, 0, 1, 4, 5, 6, 16384, 16385):
        for graph in (free, graph_of((None, 3, 5, 4)), graph_of((None, 3, 5, 4), preprocessing=(
                PRESETS["unit"]))):
            add(f"resize {resize} {graph.inputs[0].shape} {graph.metadata.preprocessing}", graph,
                PhotoOptions(resize=resize))
    for scale in (0.0, 1.0, float("nan"), float("inf")):
        add(f"scale {scale}", free, PhotoOptions(scale=scale))
    for text in ("", "a", "1", "1,2", "1,2,3", "1,2,3,4", "nan", "1,inf,2", "0", "1,,2"):
        add(f"mean {text}", free, PhotoOptions(mean=text))
        add(f"std {text}", free, PhotoOptions(std=text))
        add(f"grey mean {text}", graph_of((None, 1, 4, 4)), PhotoOptions(grey=True, mean=text))
    for shape, picture, preset, options in itertools.product(
            ((None, 1, 28, 28), (None, 784), (None, 3, 28, 28)), (None, (28, 28)),
            (None, "imagenet", "binary", "caffe"), OPTIONS[:1] + OPTIONS[7:9] + OPTIONS[15:16]):
        add(f"metadata {shape} {picture} {preset} {' '.join(options.names())}",
            graph_of(shape, picture=picture, preprocessing=PRESETS[preset] if preset else None),
            options)
    for given in (None, InputFormat(dtype="uint8"), InputFormat(scale=2.0), InputFormat(
            scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))):
        for options in (PhotoOptions(), PhotoOptions("imagenet"), PhotoOptions(scale=2.0),
                        PhotoOptions(scale=2.0, mean="1"), PhotoOptions(size="8x8")):
            graph = graph_of((None, 3, 8, 8), given=given)
            add(f"given {given} {' '.join(options.names())} {options.preprocess}", graph, options)
    add("two inputs", graph_of((None, 3, 8, 8), (None, 3)), PhotoOptions())
    found["names"] = as_text([options.names() for options in OPTIONS])
    recorded("cli_photo_options", found)


def test_shapes_and_arrays(recorded: Recorded, said: list[str], tmp_path: Path,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    graphs = {"one": graph_of((None, 3)), "two": graph_of((None, 3), (None, 2, 2)),
              "fixed": graph_of((2, 3)), "mixed": graph_of((2, 3), (None, 2)),
              "scalar": graph_of(()), "open": graph_of((None, None)),
              "bytes": graph_of((None, 3), dtype="uint8")}
    files = {"three.npy": np.ones((4, 3), np.float32), "row.npy": np.ones(3, np.float32),
             "two.npy": np.ones((4, 2), np.float32), "square.npy": np.ones((4, 2, 2), np.float32),
             "five.npy": np.ones((5, 2, 2), np.float32), "pair.npy": np.ones((2, 3), np.float32),
             "double.npy": np.ones((4, 3)), "bytes.npy": np.ones((4, 3), np.uint8),
             "scalar.npy": np.float32(3), "none.npy": np.ones((0, 3), np.float32)}
    for name, values in files.items():
        np.save(name, values)
    np.savez("both.npz", x0=files["three.npy"], x1=files["square.npy"])
    np.savez("first.npz", x0=files["three.npy"])
    np.savez("other.npz", z=files["three.npy"])
    np.save("x=1.npy", files["three.npy"])
    texts = [[name] for name in files] + [
        ["both.npz"], ["first.npz"], ["other.npz"], ["x=1.npy"], ["x0="], ["x0=three.npy"],
        ["z=three.npy"], ["x0=both.npz"], ["x0=first.npz"], ["x0=three.npy", "x1=square.npy"],
        ["x0=three.npy", "x1=five.npy"], ["x0=three.npy", "x0=three.npy"],
        ["first.npz", "x0=three.npy"], ["first.npz", "x1=square.npy"], ["x1=square.npy"],
        ["x0=pair.npy", "x1=two.npy"], ["x0=absent.npy"], ["absent.npy"],
        ["three.npy", "square.npy"]]
    for (name, graph), inputs in itertools.product(graphs.items(), texts):
        found[f"{name} {' '.join(inputs)}"] = outcome(
            arguments.read_inputs, inputs, graph, text=lambda arrays: " ".join(
                str(values.shape) for values in arrays))
        for batch in (None, 1, 3, 4, 5):
            if batch is None or inputs[0] in ("three.npy", "pair.npy", "both.npz", "none.npy"):
                found[f"{name} {' '.join(inputs)} by {batch}"] = told(said, outcome(
                    run_inputs.array_inputs, "net", graph, inputs,
                    PhotoOptions(bgr=batch == 3, scale=1.0 if batch == 4 else None), batch,
                    text=lambda made: f"{list(made.names)[:2]} {len(made.names)} {made.batch} "
                    f"{[[values.shape[:1] for values in part] for part in made.batches]}"))
    for rows, batch in itertools.product(range(5), repeat=2):
        values = np.arange(rows)
        batches = arguments.array_batches([values, values], graph_of((None,), (4,)), rows, batch)
        found[f"{rows} rows by {batch}"] = as_text(
            [[part.tolist() for part in arrays] for arrays in batches])
    recorded("cli_arrays", found)


def test_texts_of_shapes(recorded: Recorded, said: list[str]) -> None:
    found = {}
    graph = graph_of((None, 3, None, None), (None, None))
    for texts in ([], ["3,4,5"], ["3x4x5"], ["x0=3,4,5"], ["x1=7"], ["3,4,5", "x1=7"],
                  ["x0=3,4,5", "3,4,5"], ["x2=4"], ["a"], ["x0="], ["3,4"], ["4,4,5"], ["3,0,5"],
                  ["3,-1,5"], ["3,4,5,6"], ["=3,4,5"], ["x1=7", "x1=8"], ["x1=3.5"]):
        found[f"shapes {texts}"] = outcome(
            arguments.with_input_shapes, graph, texts,
            text=lambda made: " ".join(str(info.shape) for info in made.inputs))
    for dtype in ("float32", "string", "sequence", "bool"):
        found[f"type {dtype}"] = outcome(arguments.check_numbers, graph_of((None, 3), dtype=dtype))
    found["type of an output"] = outcome(arguments.check_numbers, replace(
        graph, outputs=[ValueInfo("y", (1,), "string")]))
    for shapes in ((), ((),), ((None,),), ((2,), (None,)), ((2,), (None, 3)), ((2, None),)):
        found[f"batch {shapes}"] = str(arguments.has_batch(graph_of(*shapes)))
    for model, shapes, weights, outputs, device in itertools.product(
            ("a.plan", "a.onnx", ""), (None, ["3"]), (None, "", "w"), (None, ["y"]),
            (None, "host,host")):
        monkeys = f"{model} {shapes} {weights} {outputs} {device}"
        found[f"plan {monkeys}"] = outcome(arguments.load_plan, model, device, shapes, weights,
                                           False, outputs)
        if not model or weights == "":
            found[f"graph {monkeys}"] = outcome(arguments.load_graph, model, shapes, weights,
                                                outputs)
    recorded("cli_shapes", found)


def test_sizes_of_batches(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for mixing in (None, "node BatchNorm"):
        monkeypatch.setattr(run_inputs, "mixing_node", lambda graph, size, mixing=mixing: mixing)
        for batch, rows, default in itertools.product((None, 0, 1, 2, 3, 9), (0, 1, 2, 3), (1, 2)):
            found[f"{mixing} {batch} {rows} {default}"] = outcome(
                run_inputs.batch_size, graph_of((None, 3)), batch, rows, default)
    monkeypatch.setattr(run_inputs, "mixing_node", lambda graph, size: None)
    for shape in ((None, 3), (2, 3), (None, None), (None, 3, None, 4)):
        for batch, rows in itertools.product((None, 1, 33), (1, 31, 32, 33, 40)):
            found[f"rows {shape} {batch} {rows}"] = as_text(
                [row_inputs._batch(graph_of(shape), batch, rows),
                 labelled_inputs._size_of_batches(graph_of(shape))])
    for brightness in (None, 0.0, 33.0, 63.0, 63.74, 63.75, 63.76, 100.0, 191.24, 191.25, 191.26,
                       222.0, 255.0):
        pictures = np.array([0, 60, 120, 127, 128, 130, 200, 255]).reshape(-1, 1, 1) * np.ones(
            (1, 2, 2))
        found[f"negatives {brightness}"] = as_text(run_inputs.negatives(
            "abcdefghij", pictures, ModelMetadata(brightness=brightness)))
    recorded("cli_batches", found)


def test_labels_of_samples(recorded: Recorded, said: list[str], tmp_path: Path) -> None:
    found = {}
    names_file = tmp_path / "names.txt"
    names_file.write_text("cat\nDog\n_big  bird\n")
    rng = random.Random(0)
    labels = ["cat", "dog", "DOG", "big_bird", "big bird", "0", "1", "2", "3", "-1", "x", "²"]
    sets = [["cat"], ["cat", "dog"], ["0", "2"], ["0", "3"], ["a", "b", "c"], ["a", "b"],
            ["a", "b", "c", "d"], *([rng.choice(labels) for _ in range(rng.randint(1, 4))]
                                    for _ in range(25))]
    for chosen, own, file, photos in itertools.product(
            sets, ((), ("cat", "dog", "Big Bird"), ("cat", "CAT", "dog")), (None, names_file),
            (False, True)):
        made = labelled_inputs.LabelledInputs(chosen, iter(()), 1, "data", photos, graph_of((1,)))
        text = told(said, outcome(made.classes, 3, file, own, text=lambda classes: str(
            classes.tolist())), tmp_path)
        found[f"{chosen} {own} {file is not None} {photos}"] = text.replace(
            "expected the name of one of its 3 classes (--labels FILE gives them, one a line) or "
            "a number from 0 to 2", "...")
    recorded("cli_labels", found)


def _save(path: Path, height: int, width: int, level: int = 9) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((height, width, 3), level, np.uint8)).save(path)


def test_labelled_files(recorded: Recorded, said: list[str], tmp_path: Path) -> None:
    found = {}
    for index, name in enumerate(("a/1.png", "a/2.png", "b/3.png", "b/4.png", "b/5.png")):
        _save(tmp_path / "pictures" / name, 4, 4, index * 20)
    (tmp_path / "empty").mkdir()
    (tmp_path / "four.csv").write_text("0,1,2,3,4\n1,4,3,2,1\n0,0,0,0,1\n")
    (tmp_path / "named.csv").write_text("c,a,b\ncat,1,x\ndog,2,y\n")
    x = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    np.savez(tmp_path / "shaped.npz", x=x, y=np.array([0, 1, 2]))
    np.savez(tmp_path / "ones.npz", x=x[:, None], y=np.array([0, 1, 2]))
    np.savez(tmp_path / "flat.npz", x=x.reshape(3, 8), y=np.array([0, 1, 2]))
    np.savez(tmp_path / "parts.npz", x_train=x, y_train=np.array([0, 1, 2]), x_test=x[:2],
             y_test=np.array([0, 1]))
    graphs = {"four": graph_of((None, 4)), "square": graph_of((None, 2, 2)),
              "eight": graph_of((None, 2, 4)), "turned": graph_of((None, 4, 2)),
              "channel": graph_of((None, 1, 2, 4)), "row": graph_of((None, 8)),
              "open": graph_of((None, None)), "double": graph_of((None, 4), dtype="float64"),
              "two": graph_of((None, 4), (None, 4)), "fixed": graph_of((1, 8)),
              "photo": graph_of((None, 3, 4, 4)), "last": graph_of((None, 1, 2, 4), given=(
                  InputFormat(layout="NHWC"))),
              "columns": graph_of((None, 3), columns=(Column("a"), Column("b", values=(
                  "x", "y"))))}
    for (name, graph), source, limit in itertools.product(
            graphs.items(), ("pictures", "empty", "four.csv", "named.csv", "shaped.npz", "ones.npz",
                             "flat.npz", "parts.npz", "absent"), (None, 2)):
        for label, options in (("first", PhotoOptions()), ("last", PhotoOptions()),
                               ("first", PhotoOptions("unit")))[:1 if limit else 3]:
            for batch in (None, 1, 2) if (label, limit) == ("first", None) else (None,):
                def described(made: Any) -> str:
                    parts = [part[0] for part in made.batches]
                    return (f"{list(made.labels)} {made.batch} {made.are_photos} {made.source} "
                            f"{[values.shape for values in parts]} {parts[0].dtype} "
                            f"{digest(rounded(parts))}")

                text = told(said, outcome(
                    labelled_inputs.labelled_inputs, "net", graph, str(tmp_path / source), label,
                    limit, options, batch, is_planned=False, text=described), tmp_path)
                found[f"{name} {source} {limit} {label} {options.preprocess} {batch}"] = (
                    text if len(text) < 100 else f"{text[:70]}... {digest(text)}")
    recorded("cli_labelled", found)


def test_rows_of_inputs(recorded: Recorded, said: list[str], tmp_path: Path,
                        monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    monkeypatch.chdir(tmp_path)
    for name in ("f/a.png", "f/b.png", "g/c.png"):
        _save(Path(name), 3, 3)
    for name in ("f/notes.txt", "f/more.txt", "g/one.txt"):
        Path(name).write_text("a")
    Path("four.csv").write_text("0,1,2,3\n4,5,6,7\n")
    Path("five.csv").write_text("9,0,1,2,3\n8,4,5,6,7\n")
    Path("head.tsv").write_text("a\tb\tc\td\te\n1\t2\t3\t4\t5\n")
    for name in ("a.csv", "a.TSV", "a.csv.gz", "a.tsv.GZ", "a.gz", "a.png", "csv"):
        found[f"table {name}"] = str(row_inputs.is_table(name))
    for names in ((), ("f",), ("a.png",), ("a.png", "f"), ("x.csv",), ("a.png", "x.csv")):
        found[f"rows {names}"] = str(row_inputs.make_rows(names))
    for label in ("first", "last", "2"):
        found[f"label {label}"] = outcome(row_inputs.check_label, label)
    graphs = {"four": graph_of((None, 4)), "square": graph_of((None, 2, 2)), "two": graph_of(
        (None, 4), (None, 4)), "open": graph_of((None, None)), "bytes": graph_of(
        (None, 4), dtype="uint8"), "photo": graph_of((None, 3, 3, 3)), "nhwc": graph_of(
        (None, 1, 2, 2), given=InputFormat(layout="NHWC"))}
    for (name, graph), sources in itertools.product(graphs.items(), (
            ("f",), ("f", "g"), ("f", "f/a.png"), ("f/a.png",), ("absent",), ("four.csv",),
            ("five.csv",), ("head.tsv",), ("four.csv", "f"))):
        for label, options, batch in (("first", PhotoOptions(), None), ("last", PhotoOptions(), 1),
                                      ("e", PhotoOptions(), None),
                                      ("first", PhotoOptions("unit"), None)):
            def described(made: Any) -> str:
                chunks = [] if made.key == "file" else [
                    ([entry.index for entry in entries], values.tolist())
                    for entries, values in made.chunks(range(len(made.names)))]
                return f"{made.key} {list(made.names)} {made.labels} {made.batch} {chunks}"

            found[f"{name} {sources} {label} {options.preprocess} {batch}"] = told(said, outcome(
                row_inputs.row_inputs, "net", graph, sources, options, batch, label,
                is_planned=False, text=described))
    recorded("cli_rows", found)


ROWS = (Row(0, outputs={"y": np.array([1.5, -2], np.float32), "z": np.array(3)}),
        Row("b", "cat", outputs={"y": np.array([0.1, 2], np.float32), "z": np.array(4)}),
        Row("c", error="no picture"), Row('d"\n,', outputs={"y": np.array([1, 2], np.float32)}),
        Row("e", classes=[{"class": 1, "name": None, "probability": 0.5}]),
        Row("f", classes=[{"class": 1, "name": "n", "probability": 0.5},
                          {"class": 0, "name": "m", "probability": 0.25}]),
        Row("g", outputs={"y": np.array([1, 2, 3])}), Row("h", outputs={"y": np.array([4, 5, 6])}),
        Row("i", outputs={"y": np.array([[1.0], [2.0]], np.float64)}))


def test_files_of_rows(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_MOST_COLUMNS", 6)
    found = {}
    rng = random.Random(0)
    orders = [[index] for index in range(len(ROWS))] + [
        [2, 0], [0, 2], [2, 2], [2, 6], [6, 2], [0, 1], [0, 3], [3, 3], [4, 5], [6, 7], [6, 7, 2],
        [2, 3, 2, 3], [8, 6], [8, 8], [3, 8], [2, 2, 8], [],
        *([rng.randrange(len(ROWS)) for _ in range(3)] for _ in range(10))]

    def write(path: Path, order: list[int], *, resume: bool, at_once: bool) -> str:
        with row_files.open_rows(path, "--rows", "file", resume=resume) as file:
            done = sorted(file.done)
            rows = [ROWS[index] for index in order]
            for part in [rows] if at_once else [[row] for row in rows]:
                file.write(part, len(rows))
        return as_text(done)

    for order, suffix, at_once in itertools.product(orders, (".jsonl", ".csv", ".npy"),
                                                    (False, True)):
        path = tmp_path / f"rows{suffix}"
        path.unlink(missing_ok=True)
        text = outcome(write, path, order, resume=False, at_once=at_once)
        shown = as_text(None if not path.exists() else rounded(np.load(path)).tolist()
                        if suffix == ".npy" else path.read_text())
        found[f"{order} {suffix} {at_once}"] = f"{text} {shown}"
    for suffix, content in itertools.product((".jsonl", ".csv"), (
            "", "\n", '{"file": "a"}\n', '{"file": "a"}\n{"file": "b"', '{"file": "a"}\n[]\n',
            '{"file": "a"}\n3\n', '{"name": 1}\n', "file,error,y_0,y_1\n",
            "file,error,y_0,y_1\na,,1,2\n", "file,error,y_0,y_1\na,,1,2\nb,,3",
            'file,error,y_0,y_1\n"a\nb",,1,2\n"c\n', 'file,error,y_0,y_1\n"a\nb",,1,2\n"c\nd",',
            "error,file\n", "file\n\nx\n", 'file\n"a""\n"\n"b""')):
        path = tmp_path / f"more{suffix}"
        path.write_text(content)
        text = outcome(write, path, [3], resume=True, at_once=True)
        found[f"continued {suffix} {content!r}".replace(": ", " ")] = (
            f"{text} {path.read_text()!r}")
    for name, outputs in itertools.product(("a.jsonl", "a.csv", "a.npy", "a.txt", "a"), (1, 2)):
        found[f"name {name} {outputs}"] = outcome(row_files.check, Path(name), "--rows", outputs)
    recorded("cli_row_files", found)


def test_answers(recorded: Recorded, said: list[str], tmp_path: Path,
                 capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    names_file = tmp_path / "names.txt"
    names_file.write_text("cat\ndog\nbird\n")
    whole = np.array([[1, 3, 2], [0.5, 0.25, 0.25], [0, 0, 0]], np.float32)
    broken = whole.copy()
    broken[1, 0] = np.nan
    worse = broken.copy()
    worse[2, 2] = np.inf
    for (name, scores), rows, labels, own, photos in itertools.product(
            {"whole": whole, "broken": broken, "worse": worse, "image": whole[:, None],
             "integers": whole.astype(int)}.items(), (1, 3), (None, names_file),
            ((), ("a", "b", "c")), (False, True)):
        inputs = run_inputs.RunInputs([f"in{index}" for index in range(rows)], rows, iter(()),
                                      photos, graph_of((None, 3)))
        values = {"y0": scores[:rows], "z": scores[:rows] * 2}
        for top in (1, 2):
            def printed(made: Any) -> str:
                run_output._print_answers(made or (), None)
                return as_text(made)

            text = told(said, outcome(
                run_output.find_answers, values, inputs, graph_of((None, 3), classes=own), labels,
                top, text=printed), tmp_path)
            found[f"{name} {rows} {labels is not None} {own} {photos} {top}"] = (
                f"{text[:200]} {digest(text)} {digest(capsys.readouterr().out)}")
    for count, most in itertools.product((0, 1, 2, 3), (None, 1, 2)):
        run_output._print_answers([{"input": f"i\n{index}", "top": [
            {"class": 4, "name": "", "probability": 0.125}, {"class": 5, "name": "n\nm",
                                                             "score": 1.5}]}
            for index in range(count)], most)
        found[f"printed {count} {most}"] = capsys.readouterr().out
    for summary in ({"shape": (1, 2), "dtype": "float32", "min": None, "max": None},
                    {"shape": (), "dtype": "int8", "min": -3, "max": 1234567}):
        found[f"line {summary['dtype']}"] = run_output._output_line("y", summary)
    device = SimpleNamespace(device=SimpleNamespace(name="host", description="chip"))
    found["device"] = str(arguments.device_of(device))  # type: ignore[arg-type]
    recorded("cli_answers", found)
