"""Records of what verbs print and write while they run, with networks that compute nothing."""

from __future__ import annotations

import itertools
import random
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gossamer.advise import Advice, LayerGroup, cheapest
from gossamer.advise.advice import _groups, check_speed_up
from gossamer.cli import advise, compile, detect, evaluate, report, run_rows, train_output
from gossamer.cli.row_files import Row
from gossamer.cli.row_inputs import Entry, RowInputs
from gossamer.cli.train_data import TrainingData
from gossamer.detect.box import Box
from gossamer.model.graph import Graph, ValueInfo
from gossamer.model.metadata import Column, ModelMetadata
from gossamer.train import MLP
from gossamer.train.data.dataset import Dataset
from gossamer.train.data.preparation import Preparation
from gossamer.train.data.samples import DataShape
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome, rounded


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Bar:
    """A bar of progress that is not shown."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def add_task(self, description: str, total: int | None = None) -> int:
        self.notes.append(f"{description} of {total}")
        return 0

    def update(self, task: int, **values: Any) -> None:
        self.notes.append(as_text({name: value for name, value in values.items()
                                   if name != "description"}))

    def stop(self) -> None:
        self.notes.append("stopped")


def test_rows_of_epochs(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for epochs, live, labelled, held_out, rows in itertools.product(
            (0, 1, 2, 19, 20, 21, 39, 40, 41, 12345), (None, False, True), (True, False),
            (None, 0.25), (10, 100_000)):
        if epochs > 41 and (live or rows > 10):
            continue
        bar: Any = Bar()
        reporter = train_output.EpochReporter(bar, epochs, live)
        reporter.begin_training(lambda device, algorithm: [f"on {device} by {algorithm}"],
                                "training" if held_out is None else "test",
                                DataShape(rows, 4, 2, labelled))
        for epoch in range(1, min(epochs, 45) + 1):
            reporter(SimpleNamespace(
                epoch=epoch, loss=1 / epoch, score=epoch / 50, validation_loss=None,
                validation_score=held_out, samples_per_second=1e4 * epoch, device="host",
                algorithm="plain"))
        reporter.stop()
        out = capsys.readouterr().out
        found[f"{epochs} {live} {labelled} {held_out} {rows}"] = (
            f"{len(out.splitlines())} {digest(out)} {digest(bar.notes)} "
            f"{digest(rounded(reporter.rows))} {out[:150]}")
    recorded("cli_epochs", found)


def test_ends_of_training(recorded: Recorded, capsys: pytest.CaptureFixture[str],
                          monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    rng = random.Random(0)
    for index in range(60):
        labelled = rng.random() < 0.5
        role = rng.choice(["training", "validation", "test"])
        done, epochs = rng.choice([(1, 1), (3, 10), (10, 10)])
        before = rng.choice([0, 0, 1, done])
        accuracies = [(rng.choice([None, 0.5]), rng.choice([None, 0.75])) for _ in range(done)]
        facts = {
            "samples": rng.choice([1, 200]), "seconds_trained": rng.choice([0.0, 2.0]),
            "seconds_read": 0.25, "seconds": 3.5, "epochs_done": done, "scored_as": role,
            "scored_on": "data", "scored": 50, "right": 40, "accuracy": 0.8, "kept_epoch": 2,
            "classes": ["a", "b"] if labelled else None, "errors": [0.5, 0.25],
            "goal_reached": rng.choice([None, True, False]),
            "settings": {"target_error": rng.choice([None, 0.3]), "epochs": epochs,
                         "patience": rng.choice([1, 10]), "sizes": (4, 3, 2), "batch": 5,
                         "activation": "relu", "loss": "cross_entropy", "optimiser": "adam",
                         "learning_rate": 0.001},
            "rows": [{"epoch": number + 1, "accuracy": own, "held_out_accuracy": held,
                      "samples_per_second": None if number < before else 100.0}
                     for number, (own, held) in enumerate(accuracies)]}
        outputs = {"--output": Path("m.onnx"), "samples": rng.choice([None, Path("s.npy")])}
        written = [path for path in outputs.values() if path and rng.random() < 0.8]
        train_output.print_facts(facts, outputs, written)
        found[f"facts {index}"] = capsys.readouterr().out
        found[f"accuracies {index}"] = as_text(train_output._accuracies(facts))
    for scale, threshold, pad, standardise, labelled, texts in itertools.product(
            (False, True), (None, 0.0, 0.5), (None, (3, 4)), (False, True), (False, True),
            (False, True)):
        y = np.array([0, 1] if labelled else [0.5, 1.5])
        columns = (Column("a"), Column("", None, ("x", "y"))) if texts else ()
        data = TrainingData(Dataset(np.ones((2, 4), np.float32), y, None, False, "data"), None,
                            Preparation(scale, threshold, pad, (1, 4), columns=columns),
                            np.ones((1, 4)))
        mlp = MLP(sizes=(4, 2), standardise=standardise, device="host", learning_rate=0.1, batch=3)
        device: Any = SimpleNamespace(description="chip")
        found[f"head {scale} {threshold} {pad} {standardise} {labelled} {texts}"] = "; ".join(
            train_output.head(mlp, device, data)("host", "plain"))
        for keep in ("best", "last"):
            mlp.set_params(keep=keep)
            for held_out in (None, data.training):
                found[f"role {keep} {held_out is None}"] = train_output.role(mlp, TrainingData(
                    data.training, held_out, data.preparation, data.examples))
    saved: Any = SimpleNamespace(save_onnx=lambda path, preparation: path.write_text("onnx"))
    monkeypatch.setattr(train_output.curve, "png", lambda *values: as_text(values).encode())
    for names in itertools.product((None, "m.onnx"), (None, "c.png", "none/c.png"),
                                   (None, "r.json", "none/r.json"), (None, "s.npy")):
        paths = {option: name and Path(name) for option, name in zip(
            ("--output", "--curve", "--report", "samples"), names, strict=True)}
        made = train_output.write(saved, Preparation(), facts, paths, np.ones((2, 3)))
        found[f"written {names}"] = f"{made} " + " ".join(
            f"{path} {digest(path.read_bytes())}" for path in made[0])
    recorded("cli_trained", found)


def test_runs_of_detection(recorded: Recorded, capsys: pytest.CaptureFixture[str],
                           monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    times = itertools.count()
    monkeypatch.setattr(detect, "time", SimpleNamespace(perf_counter=lambda: float(next(times))))
    rng = random.Random(0)
    for index in range(5):
        Image.fromarray(np.zeros((3 + index, 4, 3), np.uint8)).save(f"{index}.png")
    Path("bad.png").write_bytes(b"nothing")

    def boxes(images: list[np.ndarray]) -> list[list[Box]]:
        return [[Box("a\nb", 0, rng.random(), 1.4, 2.6, 3.5, 4.5)] * rng.choice([0, 1, 3])
                for _ in images]

    device = SimpleNamespace(name="host", description="chip")
    detector: Any = SimpleNamespace(detect=boxes, threshold=0.25, nms=0.45, resize="stretch",
                                    plan=SimpleNamespace(device=device))
    for count, batch, bad, prints in itertools.product((0, 1, 2, 3, 5), (1, 2, 4, 5), (0, 1, 2),
                                                       (False, True)):
        names = [f"{index}.png" for index in range(count)] + ["bad.png"] * bad
        rng.shuffle(names)
        run = detect._Run(detector, batch, None, prints)
        run.detect(list(map(Path, names)))
        before = capsys.readouterr()
        run.print_end()
        found[f"{count} {batch} {bad} {prints}"] = (
            f"{digest(before.out)} {digest(before.err)} {capsys.readouterr().out} {run.timed} "
            f"{run.seconds} {digest(rounded(run.as_json('net')))}")
    recorded("cli_detections", found)


@contextmanager
def no_bar() -> Any:
    yield Bar()


class Plan:
    """A plan whose results are given."""

    def __init__(self, graph: Graph, results: list[Any]) -> None:
        self.graph, self._results = graph, results
        self.device = SimpleNamespace(name="host", description="chip")

    @contextmanager
    def stream(self, arrays: Any) -> Any:
        yield (self._results[index] for index, _ in enumerate(arrays))

    def __call__(self, array: Any) -> Any:
        return self._results.pop(0)


def graph_of(count: int, **metadata: Any) -> Graph:
    return Graph("net", [ValueInfo("x", (None, 2))],
                 [ValueInfo(f"y{index}", (None, 3)) for index in range(count)], [], {},
                 metadata=ModelMetadata(**metadata))


def test_rows_while_they_are_computed(recorded: Recorded, capsys: pytest.CaptureFixture[str],
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    monkeypatch.setattr(run_rows, "input_bar", no_bar)
    times = itertools.count()
    monkeypatch.setattr(run_rows, "time", SimpleNamespace(perf_counter=lambda: float(next(times))))
    Path("names.txt").write_text("a\nb\nc\n")
    rng = random.Random(0)
    for index in range(80):
        outputs, rows, batch = rng.choice([1, 1, 2]), rng.choice([1, 2, 3, 5]), rng.choice([1, 2])
        key, labels = rng.choice(["file", "sample"]), rng.choice([None, Path("names.txt")])
        bad = [rng.random() < 0.25 for _ in range(rows)]
        whole = rng.random() < 0.15
        chunks, results = [], []
        for start in range(0, rows, batch):
            numbers = range(start, min(start + batch, rows))
            entries = [Entry(number, "no photo" if bad[number] else "") for number in numbers]
            good = sum(not bad[number] for number in numbers)
            chunks.append((entries, np.zeros((good, 2)) if good else None))
            if good:
                values = [np.array([[rng.choice([0.25, 1.0, 3.0, np.nan if rng.random() < 0.3
                                                 else 2.0]) for _ in range(3)]
                                    for _ in range(good)], np.float32) for _ in range(outputs)]
                if whole:
                    values[0] = values[0][0]
                results.append(tuple(values) if outputs > 1 else values[0])
        graph = graph_of(outputs, classes=rng.choice([(), ("p", "q", "r")]),
                         independent_scores=rng.random() < 0.3)
        inputs = RowInputs(key, [f"in{number}" for number in range(rows)],
                           rng.choice([None, [f"l{number}" for number in range(rows)]]), batch,
                           lambda left, chunks=chunks: iter(chunks), graph)
        options = run_rows.RowOptions(None, False, labels, rng.choice([1, 2]))
        plan: Any = Plan(graph, results)
        loop = run_rows._Loop("net", plan, inputs, options, "host", None)
        documents: list[Any] | None = rng.choice([None, []])

        def run(loop: Any = loop, documents: Any = documents, key: str = key,
                rows: int = rows) -> str:
            with run_rows._Shown(key, documents) as shown:
                loop.run(shown, range(rows))
            return as_text([rounded(loop.summary(1)), loop.unreadable, loop.broken])

        told = outcome(run)
        printed = capsys.readouterr()
        found[f"{index} {outputs} {rows} {batch} {key} {labels}"] = (
            f"{told} {digest(rounded(documents))} {digest(printed.out)} {printed.err[-200:]}")
    for row in (Row("a", error="bad"), Row("a", classes=[{"class": 3, "name": "", "score": 0.5}]),
                Row("a", classes=[{"class": 3, "name": "n\nm", "probability": 0.125}])):
        found[f"said {row.error} {row.classes}".replace(": ", "=")] = run_rows._said(row)
    recorded("cli_computed_rows", found)


def test_ranks_of_samples(recorded: Recorded, capsys: pytest.CaptureFixture[str],
                          monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    monkeypatch.setattr(evaluate, "input_bar", no_bar)
    rng = np.random.default_rng(0)
    for count, batch, classes, shape, several, broken in itertools.product(
            (1, 3, 5), (1, 2, 5), (1, 2, 6), ((), (1,)), (False, True), (False, True)):
        parts = [min(batch, count - start) for start in range(0, count, batch)]
        scores = [rng.integers(0, 4, (part, classes, *shape)).astype(np.float32) for part in parts]
        if broken:
            scores[0][0, 0] = np.nan
        results = [(part, part) if several else part for part in scores]
        samples: Any = SimpleNamespace(
            labels=["0"] * count, batches=iter([(np.zeros((part, 2)),) for part in parts]),
            classes=lambda number, labels, names, count=count: np.arange(count) % number)
        plan: Any = Plan(graph_of(1), results)
        told = outcome(evaluate._ranks, "net", plan, samples, None)
        found[f"{count} {batch} {classes} {shape} {several} {broken}"] = (
            f"{told} {capsys.readouterr().err}")
    recorded("cli_ranks", found)


def test_advice(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    rng = random.Random(0)
    ways = ("as it is", "80%", "90%", "95%", "98%", "2:4", "half the channels")
    for index in range(40):
        measured = [ways[0], *(way for way in ways[1:] if rng.random() < 0.8)]
        groups = tuple(LayerGroup(
            tuple(f"l{index}{number}" for number in range(rng.choice([1, 3]))),
            tuple(f"l{index}{number}" for number in range(rng.choice([1, 2, 3]))),
            rng.choice([10, 100, 1000]),
            {way: rng.choice([1.0, 2.0, 4.0, 10.0, 40.0]) for way in measured})
            for index in range(rng.choice([1, 2, 4])))
        advice = Advice("host", "chip", 3, groups, dict.fromkeys(measured, 2.0),
                        {way: rng.choice([10.0, 20.0, 40.0]) for way in measured},
                        {"2:4": "none"} if rng.random() < 0.3 else {},
                        ("slow",) if rng.random() < 0.3 else ())
        advise._print_advice(advice)
        printed = capsys.readouterr()
        found[f"advice {index}"] = f"{digest(printed.out)} {digest(printed.err)} {len(measured)}"
        for speed_up, keep in itertools.product((1.001, 1.5, 2.0, 5.0), ((), ("l00", "l11"))):
            choice = cheapest(advice, speed_up, keep)
            advise.print_choice("net", advice, choice, speed_up)
            printed = capsys.readouterr()
            found[f"choice {index} {speed_up} {keep}"] = (
                f"{as_text(rounded(choice.sparsities))} {choice.speed_up:.6f} {choice.reached} "
                f"{digest(printed.out)} {printed.err}")
        names = [f"n{number}" for number in range(7)]
        times = {way: [(tuple(rng.sample(names, rng.choice([1, 1, 2]))), float(number))
                       for number in range(4)] for way in ways[:3]}
        sizes = {name: number for number, name in enumerate(names) if rng.random() < 0.7}
        found[f"groups {index}"] = as_text([vars(group) for group in _groups(times, sizes)])
    for value in (0.5, 1.0, 1.001, 999.0, 1000.0, float("nan"), float("inf")):
        found[f"speed-up {value}"] = str(check_speed_up(value))
    recorded("cli_advice", found)


def test_reports_of_plans(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for tuning in ({}, {"elapsed_s": 1.25, "device_share": 0.5, "stages": [
            {"stage": "checks", "seconds": 0.125, "share": 0.1}]}):
        compile._print_tuning(tuning)
        found[f"tuning {bool(tuning)}"] = capsys.readouterr().out
    for measured, kept in itertools.product((0, 1, 2), (False, True)):
        cache = SimpleNamespace(is_kept=kept, path="cache.sqlite")
        tuner: Any = SimpleNamespace(measured=measured, cache=cache)
        found[f"interrupted {measured} {kept}"] = compile._interrupted(tuner)
    for density, shares, call_line, cached in itertools.product(
            (None, 0.25, 1.0), ({}, {"a": 0.5}), ("", "a call"), (False, True)):
        made = SimpleNamespace(rows=[{"layer": "a", "density": density, "median_us": 12.345,
                                      "share": 0.125}], batch=3, end_to_end_us=15.55,
                               shares=shares, shares_line="shares", call_line=call_line,
                               end_to_end_cached=cached, build_line="", forms_line="",
                               zeros_lines=(), memory_line="", notes=("one", "two"),
                               warnings=("two",), accuracy=None, memory=None)
        found[f"report {density} {bool(shares)} {call_line} {cached}"] = outcome(
            report.print_report, made) + capsys.readouterr().out
        for said in ((), ("two",)):
            report.print_notes(made, said)
            printed = capsys.readouterr()
            found[f"notes {said}"] = printed.out + printed.err
    rng = random.Random(0)
    candidates = [{"algorithm": f"way {number % 3}", "layouts": ["NCHW", "NHWC"], "config": "c",
                   "precision": "fp32", "median_us": us, "p25_us": us, "p75_us": us,
                   "cold_us": None, "error": error, "build_s": seconds, "build_cached": cached,
                   "reason": "slower"}
                  for number, (us, error, seconds, cached) in enumerate((
                      (None, None, None, False), (3.0, 1e-5, 0.5, True), (2.0, None, 2.0, False),
                      (5.0, 0.5, None, False)))]
    for index in range(40):
        rows = [{"layer": f"l{number}", "layers": [f"l{number}", "other"], "op": "conv2d",
                 "problem": "p", "config": "c", "algorithm": "way", "device": "host",
                 "density": rng.choice([None, 0.25]), "precision": rng.choice(["fp32", "fp16"]),
                 "median_us": rng.choice([None, 4.0]), "p25_us": rng.choice([None, 3.0]),
                 "p75_us": 5.0, "best_dense_us": rng.choice([None, 8.0]),
                 "break_even": rng.choice([None, 0.5]), "speedup": rng.choice([None, 1.5]),
                 "speedup_reason": rng.choice([None, "slower alone"]),
                 "error": rng.choice([None, 1e-6]), "rejected": {"way 1": "no", "way 9": "never"},
                 "candidates": candidates[:rng.randint(0, 4)]}
                for number in range(rng.randint(1, 3))]
        made = SimpleNamespace(
            rows=rows, batch=3, end_to_end_us=15.55, end_to_end_cached=rng.random() < 0.5,
            plans=rng.choice([(), ({"plan": "p", "median_us": 2.0, "p25_us": 1.0, "p75_us": 3.0,
                                    "outcome": "taken"},)]),
            shares=rng.choice([{}, {"a": 1}]), shares_line="shares", notes=("n",), warnings=(),
            zeros_lines=rng.choice([(), ("zeros", "")]), forms_line=rng.choice(["", "forms"]),
            build_line=rng.choice(["", "built"]), accuracy=rng.choice([None, 1]))
        tuner = SimpleNamespace(notices=[], measured=1, reused=2, not_tried=3)
        device: Any = SimpleNamespace(name="host", description="chip")
        compile._print_reports(device, [made], tuner, rng.choice([(), ("l0",), ("other",)]),
                               rng.choice(["fp32", "fp16"]))
        out = capsys.readouterr().out
        found[f"plan {index}"] = f"{digest(out)} {out[-160:]}"
    recorded("cli_reports", found)
