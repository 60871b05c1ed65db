"""Records of the values that verbs read from their options, and of what they refuse."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.bench.serving import ServingRow
from gossamer.bench.work import Item
from gossamer.cli import (
    bench,
    bench_network,
    bench_serve,
    compile,
    detect,
    detect_output,
    photo_options,
    prune,
    run_rows,
    serve,
    train,
    train_data,
    train_options,
)
from gossamer.cli.run_rows import RowOptions
from gossamer.cli.train_data import DataOptions, TrainingData
from gossamer.errors import InputError
from gossamer.io.output_files import check_file
from gossamer.model.graph import Graph, ValueInfo
from gossamer.model.prune import PrunedLayer
from gossamer.train import MLP
from gossamer.train.data.dataset import Dataset
from gossamer.train.data.preparation import Preparation
from gossamer.train.data.samples import DataShape
from tests.bench.rows import row
from tests.cli.command_line import gossamer_cli
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome, rounded


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a test a folder of its own, and makes no text depend on the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gossamer"])


def test_lists_of_numbers_and_names(recorded: Recorded) -> None:
    found = {}
    for text in ("", "1", "0", "-1", "1,8", "8,1,8", "1,0", "2,,3", "a", "1.5", " 4", "0,5", "5,0"):
        for function in (bench._batches, compile._batches):
            found[f"{function.__module__} batches {text}"] = outcome(function, text)
        found[f"threads {text}"] = outcome(bench._loads, text, None, 2.0)
        found[f"rates {text}"] = outcome(bench_serve._rates, text)
        for function in (train_options.sizes, train_options.hidden):
            found[f"{function.__name__} {text}"] = outcome(function, text)
    for rate, seconds in itertools.product((None, -1.0, 0.0, 0.5, float("inf"), float("nan")),
                                           (-1.0, 0.0, 0.25, float("inf"), float("nan"))):
        found[f"load {rate} {seconds}"] = outcome(bench._loads, "2", rate, seconds)
    for text in ("fp32", "fp16,fp32", "fp64", "fp32,", "fp32,fp32", "some", "fp16,tf32,fp32"):
        found[f"precision {text}"] = outcome(bench._precisions, text)
    for text in (None, "none", "unfused", "dense,unfused", "winograd,none", "some"):
        told = outcome(bench._forced, text)
        found[f"forced {text}"] = told.split("expected some of")[0]
    for text in (None, "none", "litserve", "some", "", "gossamer"):
        found[f"servers {text}"] = outcome(bench_serve._servers, text)
    for text in ("conv=winograd", "a=b=c", "=x", "x=", "x", "", "="):
        found[f"forced layer {text}"] = outcome(compile._forced, [text])
    found["forced twice"] = outcome(compile._forced, ["a=x", "a=y", "b=x"])
    names = ["features.0", "features.1", "classifier", "add", "Features.10"]
    for text in ("features.0", "feature", "FEATURES", "x", "clasifier", "ad", "10", ""):
        found[f"explain {text}"] = outcome(compile._check_layer, text, names)
    for text in (None, "constant", "inverse", "step:4:0.3", "step:4", "step:4:0.3:1", "step:x:0.3",
                 "step:0:0.3", "step:4:0", "step:4:-1", "other", "other:4:0.3", ""):
        found[f"schedule {text}"] = outcome(train_options.schedule, text)
    for text in (None, "32x32", "1x1", "0x1", "1x0", "-1x3", "3", "1x2x3", "x", "ax3"):
        found[f"pad {text}"] = outcome(train_options.padded_shape, text)
    for text in ("5ms", "0.005", "200us", "1 s", ".5s", "0", "0ms", "-1", "1e3", "999999",
                 "1000000", "999999999ms", "1000000000ms", "5 m", "", "ms"):
        found[f"time {text}"] = outcome(serve.seconds_of, text, "--latency")
    for texts in (["a.onnx"], ["a.onnx.gz", "b.plan"], ["x=a.onnx"], ["x=a", "x=b"], ["=a"],
                  ["a b.onnx"], ["-a=b"], ["a" * 100], ["a" * 101], ["dir/a.cfg"], ["a.onnx.onnx"],
                  [".a=x"], ["_=x"], ["a=b=c"]):
        found[f"models {texts}"[:80]] = outcome(serve._named, texts)
    for words in ([], ["gemm"], ["mobilenet_v2"], ["gemm", "mobilenet_v2", "a.onnx"], ["x.txt"]):
        found[f"words {words}"] = outcome(bench._split, words, text=str)
    recorded("cli_lists", found)


def test_peers_of_cases(recorded: Recorded) -> None:
    kinds = {"network": {}, "layer": {"is_layer": True}, "training": {"is_training": True},
             "tuning": {"is_tuning": True}, "ladder": {"is_ladder": True},
             "called": {"is_called": True}, "module": {"is_module": True}}
    items: dict[str, Any] = {name: Item("suite", name, 1, lambda setting: None, **options)
                             for name, options in kinds.items()}
    found = {}
    for first, second in itertools.product(items, repeat=2):
        marks = {**kinds[first], **kinds[second]}
        item: Any = Item("suite", first, 1, lambda setting: None, **marks)
        found[f"kind {first} {second}"] = bench._kind(item)
    devices: dict[str, Any] = {
        "host": SimpleNamespace(compiles=False, runs_cuda_libraries=False, name="host"),
        "opencl": SimpleNamespace(compiles=True, runs_cuda_libraries=False, name="opencl:0",
                                  kind="opencl", api="opencl"),
        "cuda": SimpleNamespace(compiles=True, runs_cuda_libraries=True, name="cuda:0",
                                kind="cuda", api="cuda")}
    for (name, device), chosen, text in itertools.product(
            devices.items(), (["network"], ["layer", "network"], ["called"], ["ladder", "tuning"],
                              ["training", "layer"], ["module"]),
            (None, "none", "onnxruntime", "torch-eager,cudnn", "some", "onnxruntime,none")):
        told = outcome(bench._peers, text, device, [items[each] for each in chosen])
        found[f"peers {name} {chosen} {text}"] = told if len(told) < 240 else (
            f"{told[:90]}... {digest(told)}")
    recorded("cli_peers", found)


def test_options_of_plans(recorded: Recorded) -> None:
    found = {}
    for effort, precision, threshold, budget, output, html in (
            ("normal", "fp32", None, None, None, None), ("some", "fp32", None, None, None, None),
            ("quick", "some", None, None, None, None),
            *(("max", "fp16", value, None, None, None) for value in (0.0, 1e-9, 0.5, 1.0, -1.0)),
            *(("max", "tf32", None, value, None, None) for value in (
                0.0, 1e-9, 5.0, float("inf"), float("nan"))),
            ("quick", "fp32", None, None, "a.plan", "a.html"),
            ("quick", "fp32", None, None, "a.txt", None),
            ("quick", "fp32", None, None, None, "a.txt"),
            ("quick", "fp32", None, None, "none/a.plan", None)):
        found[f"{effort} {precision} {threshold} {budget} {output} {html}"] = outcome(
            compile._check_options, effort, precision, threshold, budget,
            output and Path(output), html and Path(html))
    for sparsity, per_layer, scope, pattern in itertools.product(
            (None, -0.1, 0.0, 0.5, 0.9, 1.0, float("nan")), (None, Path("a.csv")),
            (None, "global", "layer", "some"), ("unstructured", "2:4", "channels", "some")):
        key = f"{sparsity} {per_layer} {scope} {pattern}"
        found[f"zeros {key}"] = outcome(prune._check_zeros, sparsity, per_layer, scope, pattern)
        for speed_up, precision in ((0.5, None), (1.0, "fp16"), (2.0, None), (2.0, "some")):
            if sparsity in (None, 0.5) and (scope is None or per_layer is None):
                found[f"speed-up {speed_up} {precision} {key}"] = outcome(
                    prune._check_speed_up, speed_up, sparsity, per_layer, scope, pattern,
                    precision)
    for options in ({}, {"device": None, "batch": None}, {"device": "host"}, {"batch": 3}):
        found[f"measured {list(options.items())}"] = outcome(prune._check_measured, **options)
    recorded("cli_plan_options", found)


def test_shares_of_layers(recorded: Recorded, tmp_path: Path) -> None:
    found = {}
    texts = ["", "\n\n", "a, 0.5", "a,0.5\nb, 0\n", "layer, sparsity\na, 0.5", "a, sparsity\n",
             "a, 0.5\nx, sparsity\n", "# a\na, 0.5", "a", "a, 0.5, 1", "a, x", "a, 1",
             "a, -0.1", "a, nan", "a, 0.999", "a, 0.5\na, 0.6", '"a, b", 0.5', ", ", "a,",
             "a, 0.5\n, 0.6", '"a', "\ufeffa, 0.5", "a\tb, 0.5", "a, 0.5\n\n\nb, x\n",
             "sparsity\n", "x, y, sparsity"]
    json_texts = ["", "{}", "[]", "3", '{"a": 0.5}', '{"a": 0.5, "a": 0.6}', '{"a": true}',
                  '{"a": null}', '{"a": "0.5"}', '{"a": 1}', '{"a": {}}', '{"a": 0.5, "b": 0}',
                  "{\n\n\"a\" 0.5}", '{"a": 1e999}', '{"a": ' + "9" * 400 + "}", "[" * 9]
    for suffix, contents in ((".csv", texts), (".json", json_texts), (".txt", ["a, 0.5"])):
        for content in contents:
            path = tmp_path / f"shares{suffix}"
            path.write_text(content, encoding="utf-8")
            told = outcome(prune.read_shares, path, hidden=tmp_path)
            told = told.split("is no JSON")[0] if "is no JSON" in told else told
            found[f"{suffix} {content[:50]!r}".replace(": ", "=")] = told
    (tmp_path / "bytes.csv").write_bytes(b"\xff")
    for name in ("bytes.csv", "none.csv"):
        found[name] = outcome(prune.read_shares, tmp_path / name, hidden=tmp_path)
    recorded("cli_shares", found)


def test_pruned_layers_are_printed(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    layers = [PrunedLayer("a", "Conv", "w", (4, 2, 1, 1), 8, 4),
              PrunedLayer("b", "Gemm", "w", (3, 5), 10, 10),
              PrunedLayer("c", "Conv", "w", (0,), 0, 0, "its weights are computed"),
              PrunedLayer("d", "Conv", "w", (2, 1, 3, 3), 18, 18, "depthwise"),
              PrunedLayer("e", "Conv", "w", (1, 1, 1, 1), 1, 0)]
    for count in range(1, 4):
        for chosen in itertools.combinations(layers, count):
            if any(not layer.kept for layer in chosen):
                for as_json in (False, True):
                    prune._report("net", Path("out.onnx"), list(chosen), as_json)
                    out = capsys.readouterr().out
                    found[f"{[layer.name for layer in chosen]} {as_json}"] = (
                        f"{digest(out)} {out[-180:] if not as_json else ''}")
    recorded("cli_pruned", found)


def test_options_of_training(recorded: Recorded, tmp_path: Path) -> None:
    found = {}
    for threshold, binarise in itertools.product((None, -0.1, 0.0, 1e-9, 1.0, 1.1),
                                                 (False, True)):
        found[f"threshold {threshold} {binarise}"] = outcome(train._check_threshold, threshold,
                                                             binarise)
    for sizes, hidden, effort, task, more in (
            *(((4, 3, 2), None, effort, "classification", {})
              for effort in (None, "quick", "some")),
            *((sizes, None, None, "classification", {}) for sizes in (
                (4,), (4, 2), (4, 0, 2), (0, 2), (4, 1), (4, 3, 3, 2))),
            ((), (3,), None, "classification", {}), ((), (0,), None, "classification", {}),
            ((4, 2), (3,), None, "classification", {}), ((4, 1), None, None, "regression", {}),
            *(((4, 2), None, None, "classification", {name: value}) for name, value in (
                ("learning_rate", 0.0), ("learning_rate", -1.0), ("momentum", 1.0),
                ("momentum", -0.1), ("momentum", 0.5), ("weight_decay", -1.0), ("batch", 0),
                ("epochs", 0), ("patience", 0), ("keep", "some"), ("activation", "some"),
                ("loss", "some"), ("optimiser", "some"), ("initial", "some"),
                ("target_error", -1.0), ("loss", "squared_error")))):
        mlp = MLP(sizes=sizes, hidden=hidden, effort=effort, task=task, device="host", **more)
        key = f"{sizes} {hidden} {effort} {task} {list(more.items())}"
        found[f"settings {key}"] = outcome(train_options.check_settings, mlp)
        for shape in (DataShape(5, 4, 2, True), DataShape(5, 3, 2, True),
                      DataShape(5, 4, 1, False)):
            found[f"settled {key} {shape}"] = outcome(
                train_options.settle, mlp, shape, text=lambda _, mlp=mlp: as_text(
                    [mlp.sizes, mlp.loss, mlp.learning_rate, mlp.batch]))
    (tmp_path / "there").write_text("")
    for checkpoint, resume in itertools.product((None, Path("there"), Path("none")), (False, True)):
        found[f"resume {checkpoint} {resume}"] = outcome(train_options.check_resume, checkpoint,
                                                         resume)
        found[f"hint {checkpoint}"] = train_options.checkpoint_hint(checkpoint)
    for output, curve, report in itertools.product(
            (None, "a.onnx", "a.txt", "there"), (None, "a.png", "b.PNG", "./a.onnx"),
            (None, "a.json", "a.png")):
        found[f"outputs {output} {curve} {report}"] = outcome(
            train_options.check_outputs, {
                "--output": output and Path(output), "--curve": curve and Path(curve),
                "--report": report and Path(report), "--checkpoint": Path("there")},
            ["there" if report is None else None, None])
    for fraction in ("", "0", "0.0", "0.1", "1", "0.999", "1.0", "-0.1", "nan", "file.csv", "inf"):
        found[f"validation {fraction}"] = outcome(train_data._fraction, fraction)
    for name in ("learning_rate", "target_error", "sizes"):
        found[f"option {name}"] = train_options._option(name)
    for name, value in (("shuffle", True), ("shuffle", False), ("sizes", (3, 2)), ("schedule", (
            "('step', 4, 0.3)")), ("schedule", "constant"), ("batch", 3), ("learning_rate", 0.1)):
        found[f"setting {name} {value}"] = train_options._setting(name, value)
    recorded("cli_train_options", found)


def test_samples_for_training(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[str] = []
    monkeypatch.setattr("gossamer.io.terminal.notice", lambda message, kind="notice": (
        notices.append(str(message))))
    found = {}

    def data(x: Any, y: Any, shape: tuple[int, int] | None = None, pixels: bool = False,
             source: str = "data") -> Dataset:
        return Dataset(np.asarray(x, np.float32), np.asarray(y), shape, pixels, source)

    def add(case: str, function: Any, *values: Any) -> None:
        found[case] = " | ".join([outcome(function, *values), *notices])
        notices.clear()

    sets = {f"{low} to {high}": data([[low, high], [0, low]], [0, 1], source=f"{low}..{high}")
            for low, high in ((0, 1), (0, 16), (0, 17), (-16, 0), (-17, 0), (-1, 255), (0, 255),
                              (0, 256), (0, 1e-3), (0, 160), (0, 161), (0, 10), (0, 11))}
    for (name, training), scale, standardised in itertools.product(
            sets.items(), (None, True, False), (False, True)):
        add(f"ranges {name} {scale} {standardised}", train_data._tell_of_ranges, training, None,
            scale, bool(scale), standardised)
    for (first, training), (second, held_out) in itertools.product(sets.items(), repeat=2):
        add(f"ranges {first} and {second}", train_data._tell_of_ranges, training, held_out, False,
            first == "0 to 1", False)
    rng = random.Random(0)

    def checked(sizes: tuple[int, ...], training: Dataset, held_out: Dataset | None,
                shuffle: bool) -> None:
        mlp = MLP(sizes=sizes, shuffle=shuffle, device="host")
        train_data.check(mlp, TrainingData(training, held_out, Preparation(), training.x))

    for count, classes in ((3, 1), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2), (8, 3), (21, 21),
                           (21, 20), (99, 20), (100, 21), (104, 21), (105, 21), (106, 21)):
        orders = {"sorted": sorted(index % classes for index in range(count)),
                  "mixed": [index % classes for index in range(count)]}
        for (order, labels), outputs, shuffle in itertools.product(
                orders.items(), (classes - 1, classes, classes + 1), (False, True)):
            if outputs:
                for kind in (int, str):
                    training = data(np.ones((count, 4)), np.array(labels).astype(kind))
                    add(f"check {count} {classes} {order} {outputs} {shuffle} {kind.__name__}",
                        checked, (4, outputs), training, None, shuffle)
    for inputs, shape, sizes in itertools.product((3, 4, 6, 16), (None, (2, 2), (2, 3), (4, 4)), (
            (4, 2), (6, 3, 2), (16, 2), (9, 2))):
        for where in ("training", "held out"):
            wrong = data(np.ones((4, inputs)), [0, 1, 0, 1], shape)
            right = data(np.ones((4, sizes[0])), [0, 1, 0, 1])
            add(f"inputs {inputs} {shape} {sizes} {where}", checked, sizes,
                wrong if where == "training" else right, None if where == "training" else wrong,
                True)
    for labels in ([0, 1, 2], [0], ["0", "1"], ["x"]):
        add(f"held out labels {labels}", checked, (4, 2), data(np.ones((4, 4)), [0, 1, 1, 0]), data(
            np.ones((len(labels), 4)), labels), True)
    for outputs in (1, 2):
        add(f"numbers {outputs}", checked, (4, outputs), data(np.ones((4, 4)), [0.5, 1, 2, 3]),
            None, True)
    for index in range(12):
        x = [[rng.randint(0, 3) for _ in range(4)] for _ in range(8)]
        text = "\n".join(",".join(map(str, [index % 3, *line])) for index, line in enumerate(x))
        Path("samples.csv").write_text(text)
        Path("others.csv").write_text(text.replace("3", "2"))
        options = DataOptions("samples.csv", rng.choice([None, "0.25", "0.5", "others.csv"]),
                              rng.choice(["first", "last"]), rng.choice([None, 5]), index,
                              rng.choice([None, True, False]), rng.choice([None, 0.5]), None,
                              rng.random() < 0.5, rng.random() < 0.3)

        def shown(read: TrainingData) -> str:
            return f"{read.shape} {read.preparation} " + digest([
                [part.x, part.y.tolist()] for part in (read.training, read.held_out) if part
            ] + [read.examples])

        found[f"read {index} {options}".replace(": ", "=")] = " | ".join(
            [outcome(train_data.read, options, text=shown), *notices])
        notices.clear()
    recorded("cli_train_data", found)


def test_files_of_detections(recorded: Recorded, tmp_path: Path,
                             capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for name in ("folder", "folder.json", "folder.png"):
        Path(name).mkdir()
    for name in ("a.jpg", "b.png", "file", "names.txt"):
        Path(name).write_bytes(b"")
    photos = (["a.jpg"], ["a.jpg", "b.png"], ["x/a.png", "y/a.png", "z/A.PNG"],
              ["a.jpg", "a.jpg"], ["c.bmp", "x/c.png", "d.JPEG"],
              ["x/a-2.png", "y/a.png", "z/a.png"])
    for name, given in itertools.product(
            ("", "out.json", "out.JPG", "out.jpeg", "out.gif", "folder", "folder/", "new", "new/",
             "folder.json", "folder.png", "file", "a.jpg", "b.png", "names.txt", "none/out.json",
             "none/out.png", "none/new", "new.x/", "new.x"), photos):
        made = outcome(
            detect_output.DetectOutput, name, [Path(each) for each in given],
            [None, "names.txt"], text=lambda out: (
                f"{ {str(key): str(value) for key, value in out._targets.items()} } {out._list} "
                f"{out._new_folder}"))
        found[f"{name} {given}"] = made.replace("': '", "' to '")
    for folder, given in itertools.product((True, False), (["folder"], ["a.jpg", "folder"], [""], [
            "none.png"])):
        for names in (["b.png"], ["b.png", "a.jpg", ".c.png", "d.txt"], ["e.psd", "a.jpg"],
                      ["e.psd", "f.psd", "g.tiff", "h.tga", "a.webp"], []):
            if folder:
                for each in Path("folder").iterdir():
                    each.unlink()
                for each in names:
                    (Path("folder") / each).write_bytes(b"")
                found[f"photos {given} {names}"] = outcome(
                    detect._photos, given, text=lambda paths: str(list(map(str, paths)))
                ) + capsys.readouterr().err
    for message in ("threshold 3 is", "nms 2", "resize x", "2 names are given", "other"):
        for names in (None, Path("n.txt")):
            found[f"message {message} {names}"] = detect._as_option(message, names)
    recorded("cli_detect", found)


def test_rows_of_runs(recorded: Recorded) -> None:
    found = {}
    Path("there.csv").write_text("")
    for output, resume, outputs in itertools.product(
            (None, "a.jsonl", "a.csv", "a.npy", "a.txt", "none/a.csv", "there.csv"),
            (False, True), (1, 2)):
        graph = Graph("net", [], [ValueInfo(f"y{index}", (None, 2)) for index in range(outputs)],
                      [], {})
        found[f"{output} {resume} {outputs}"] = outcome(
            run_rows.check, RowOptions(output, resume, None, 5), graph, ["there.csv"])
    for value in (0.0, 0.123456, 9.994, 9.9999, 10.0, 10.6, 1234567.0):
        found[f"rate {value}"] = run_rows._rate(value)
    for key, unreadable, before in itertools.product(("file", "sample"), (0, 1, 5), (0, 1, 7)):
        found[f"text {key} {unreadable} {before}"] = run_rows._text(key, {
            "rows": 3, "seconds": 2.5, "a_second": 12.0, "unreadable": unreadable,
            "rows_before": before})
    recorded("cli_run_rows", found)


def test_tables_of_servers(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for index, (rate, batches) in enumerate(itertools.product(
            (None, 0.5, 12345.6), ({}, {1: 1.0}, {1: 0.25, 8: 0.75}))):
        bench_serve._print([ServingRow("gossamer", 1, rate, 1234.56, 0.5, 12.34, 1234.5, index,
                                       batches)])
        found[f"serving {rate} {list(batches)}"] = capsys.readouterr().out
    rng = random.Random(0)
    for index in range(10):
        precisions = rng.sample(["fp32", "tf32", "fp16"], rng.randint(1, 2))
        rows = [[row(contender, rng.choice([0.5, 9.996, 12.0, 1500.0]), precision=precision,
                     batch=batch, tail={"p99_us": 20.0, "p99.9_us": 2000.0})
                 for contender in ("gossamer", "torch-eager", "onnxruntime")
                 for precision in precisions if rng.random() < 0.7] for batch in (1, 64)]
        results: Any = [SimpleNamespace(
            rows=each, absent={"a": "gone"} if rng.random() < 0.5 else {},
            failed={"b": "broken", "c": "broken"} if rng.random() < 0.5 else {},
            notice=rng.choice(["", "slow"]), case=SimpleNamespace(name="net/arrays", batch=batch))
            for each, batch in zip(rows, (1, 64), strict=True)]
        device: Any = SimpleNamespace(name="cuda:0", description="Chip")
        document = bench_network._document(Path("net"), device, precisions, "quick", results)
        document.pop("gossamer")
        found[f"network {index}"] = as_text(rounded(document))
        found[f"columns {index}"] = as_text(bench_network._columns(document))
        found[f"lines {index}"] = as_text([bench_network._texts(line)
                                           for line in document["contenders"]])
    recorded("cli_bench_tables", found)


def test_tables_of_rows_on_the_command_line(recorded: Recorded,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.bench.rows import append_rows

    rng = random.Random(1)
    append_rows(Path("rows.jsonl"), [
        row(rng.choice(["gossamer", "cudnn"]), rng.choice([1.0, 2.0, 30.0]),
            suite=rng.choice(["networks", "gemm"]), case=rng.choice(["a/x", "b/y", "c"]),
            notice=rng.choice(["", "slow"])) for _ in range(20)])
    Path("empty.jsonl").write_text("")
    Path("doc.md").write_text("<!-- bench:gemm --><!-- /bench -->")
    table = ["--table", "rows.jsonl"]
    found = {}
    for words in (table, ["gemm", *table], ["gemm", "networks", *table], ["other", *table],
                  [*table, "--case", "a"], [*table, "--case", "c"], [*table, "--case", "none"],
                  ["gemm", *table, "--case", "none"], ["--table", "empty.jsonl"],
                  ["--table", "none.jsonl"], [*table, "--into", "doc.md"],
                  ["gemm", *table, "--into", "doc.md"], [*table, "--into", "doc.md", "--case", "a"],
                  [*table, "--csv", "a.csv"], [*table, "--csv", "a.txt"], ["--into", "doc.md"],
                  ["--figures", "folder"], [*table, "--json", "--markdown"], ["--json",
                                                                              "--markdown"],
                  ["gemm", "--rates", "3"], ["gemm", "--latency", "5ms"], ["serve"],
                  ["serve", "a.onnx", "b.onnx"], ["timm"], ["timm", "--models", "x", "-o", "a.txt"],
                  ["gemm", "--effort", "some"], ["gemm", "--plan-budget", "0"],
                  ["gemm", "--plan-budget", "-1"], ["gemm", "--plan-budget", "inf"], ["none"], [],
                  ["gemm", "--batch", "0"], ["gemm", "--precision", "x"], ["gemm", "--case", "zzz"],
                  ["gemm", "--threads", "0"], ["gemm", "--seconds", "0"], ["gemm", "--rate", "0"],
                  ["gemm", "-o", "a.txt"], ["gemm", "--against", "x", "--device", "host"],
                  ["mobilenet_v2", "--effort", "some"], ["mobilenet_v2", "yolov2-tiny"],
                  ["mobilenet_v2", "--against", "x", "--device", "host"]):
        result = gossamer_cli("bench", *words)
        text = f"{result.exit_code} {result.stdout} {result.stderr}"
        found[" ".join(words)] = text if len(text) < 400 else f"{text[:200]}... {digest(text)}"
    recorded("cli_bench", found)


def test_photos_that_do_not_fit(recorded: Recorded) -> None:
    found = {}
    for preset in ("imagenet", "caffe", "unit", "signed8", "binary", "none", "", "some"):
        found[f"preset {preset}"] = outcome(photo_options.check_preset, preset, text=str)
    for option, suffix in itertools.product(("a.png", "a.PNG", "none/a.png"), (None, ".png")):
        found[f"file {option} {suffix}"] = outcome(check_file, "--plot", Path(option), suffix)
    with pytest.raises(InputError):
        photo_options.check_preset("some")
    recorded("cli_presets", found)
