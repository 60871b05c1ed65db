"""Records of the tables, figures and files that are made of drawn result rows."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.bench import rows as row_files
from gossamer.bench.contest import Result
from gossamer.bench.report import (
    figures,
    ladder_chart,
    plots,
    sparse_summary,
    tables,
    terminal,
    views,
)
from gossamer.bench.rows import ResultRow
from tests.bench.rows import row
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome, rounded

CONTENDERS = ("gossamer", "gossamer:unfused", "gossamer:dense", "gossamer:pointwise_mma",
              "gossamer:im2col_gemm", "gossamer:direct_sparse/tiled",
              "gossamer:direct_sparse/untiled", "gossamer:direct_sparse_table",
              "gossamer:direct_sparse_compiled", "cudnn", "cublas-lowering", "cusparse-lowering",
              "torch-eager", "onnxruntime")
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "int8", "b1")
TIMES = (0.5, 9.96, 10.0, 100.0, 101.0, 102.0, 103.0, 999.0, 1000.0, 12345.6)
"""Few times, so that some are equal and others lie within 2% of one another."""


def drawn(rng: random.Random, suites: tuple[str, ...], cases: tuple[str, ...],
          count: int) -> list[ResultRow]:
    """Returns rows of one or more runs. The cases of each run are the same."""
    runs = [(f"run{index}", f"2026-01-0{index + 1}T00:00:00", rng.choice([None, "abc", "def"]))
            for index in range(rng.choice([1, 1, 2, 3]))]
    machines = rng.choice([("Chip",), ("Chip", "Other chip 2")])
    contenders = rng.sample(CONTENDERS, rng.randint(2, 9))
    if rng.random() < 0.8 and "gossamer" not in contenders:
        contenders.append("gossamer")
    precisions = rng.sample(PRECISIONS, rng.randint(1, 3))
    api = rng.choice(["cuda", "opencl", "host", "other"])
    found = []
    for _ in range(count):
        run_id, date, commit = rng.choice(runs)
        contender, median = rng.choice(contenders), rng.choice(TIMES)
        device = "host" if contender == "onnxruntime" and rng.random() < 0.5 else api
        tail = {"p99_us": median * 2, "p99.9_us": median * 3} if rng.random() < 0.1 else {}
        found.append(row(
            contender, median, suite=rng.choice(suites), case=rng.choice(cases),
            batch=rng.choice([1, 8]), precision=rng.choice(precisions), device=device,
            run_id=run_id, date=date, commit=commit, machine=rng.choice(machines),
            p25_us=median * 0.875, p75_us=median * 1.125, tail=tail,
            density=rng.choice([1.0, 0.15, 0.05, 0.02]),
            speed_of_light_us=rng.choice([None, 5.0, 101.0]), layout=rng.choice(["NCHW", "a|b"])))
    return found


def draws() -> Iterator[tuple[str, list[ResultRow]]]:
    rng = random.Random(0)
    kinds: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "one": (("networks",), ("net",)), "plain": (("mobilenet", "gemm"), ("net/a", "net/b", "x")),
        "tuning": (("tuning",), ("net/quick", "net/normal")),
        "pointwise": (("pointwise-layers",), ("a/1", "a/2", "b/1")),
        "sparse": (("sparse-layers", "sparse-networks"), (
            "alexnet/conv2", "caffenet/conv5", "caffenet/conv6", "googlenet/x", "resnet50/y",
            "other/conv1"))}
    for kind, (suites, cases) in kinds.items():
        for index, count in enumerate((1, 2, 3, 5, 8, 13, 20, 30, 45, 60, 90, 140)):
            yield f"{kind} {index}", drawn(rng, suites, cases, count)


def text_of(lines: str | list[str]) -> str:
    text = lines if isinstance(lines, str) else "\n".join(lines)
    return text if len(text) < 240 else f"{len(text)} {digest(text)} {text[:70]}"


def test_tables(recorded: Recorded) -> None:
    found = {}
    for name, rows in draws():
        found[f"{name} markdown"] = text_of(outcome(tables.markdown, rows, text=str))
        found[f"{name} lines"] = text_of(outcome(tables.summary_lines, rows, text="\n".join))
        for suite in sorted({each.suite for each in rows}):
            found[f"{name} markdown of {suite}"] = digest(
                outcome(tables.markdown, rows, suite, text=str))
            found[f"{name} lines of {suite}"] = digest(
                outcome(tables.summary_lines, rows, suite, text=str))
            found[f"{name} summary of {suite}"] = text_of(
                outcome(tables.summary, rows, suite, text=str))
            layers = sparse_summary.newest(rows, suite)
            found[f"{name} newest of {suite}"] = as_text(
                [(case.own.case, case.own.batch, case.own.date[8:10], len(case.rows))
                 for case in layers])
            if suite.startswith("sparse") and layers:
                for part in (layers, layers[:1]):
                    both = (part, []) if suite == "sparse-layers" else ([], part)
                    found[f"{name} sparse summary of {len(part)} {suite}"] = text_of(
                        outcome(sparse_summary.summary, *both, text=str))
    for value in (0, 0.004, 9.994, 9.996, 10, 99.94, 999.94, 999.96, 1000, 1e6):
        found[f"us {value}"] = tables.us(value)
    recorded("bench_tables", found)


def test_columns_of_pruned_layers(recorded: Recorded) -> None:
    found = {}
    for name, rows in draws():
        for suite in ("sparse-layers", "sparse-networks"):
            for kept in ((), ("fp32",), ("fp16",), ("fp32", "tf32"), ("fp32", "tf32", "fp16")):
                part = [row for row in rows if row.contender != "cudnn" or row.precision in kept]
                layers = sparse_summary.newest(part, suite)
                if layers:
                    found[f"{name} {suite} {' '.join(kept)}"] = digest(sorted(
                        sparse_summary._columns(layers)))
    recorded("bench_columns", found)


def test_views(recorded: Recorded) -> None:
    found = {}
    for name, rows in draws():
        shown = views.views(rows)
        for view in shown:
            key = (f"{name} {view.first.suite} {view.first.case} {view.first.batch} "
                   f"{view.first.machine} {view.first.device} {view.precision}")
            found[key] = digest([
                [view.name(each), view.contender(each), rounded(view.speed(each)),
                 rounded(each.share_of_light), each.median_us, each.run_id] for each in view.rows]
            ) + f" {view.light} {rounded(view.speed(view.rows[0]))} {len(view.fastest)}"
        standings = views.standings(shown)
        found[f"{name} standings"] = " ".join(
            f"{key} {value.speed:.4f} {value.held}/{value.cases}"
            for key, value in sorted(standings.items()))
        for own in ("gossamer", "gossamer:pointwise_mma"):
            found[f"{name} {own} against the fastest"] = as_text(rounded(
                views.against_fastest(shown, own, ("cudnn", "cublas-lowering"))))
    recorded("bench_views", found)


def test_documents(recorded: Recorded, tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = drawn(rng, ("networks", "gemm"), ("a/x", "b/y"), 40)
    opening, closing = "<!-- bench:networks -->", "<!-- /bench -->"
    short = "<!-- bench:gemm summary -->"
    found = {}
    for index, text in enumerate((
            "", "nothing", opening, closing, f"{opening}{closing}", f"a{opening}old{closing}b",
            f"{closing}{opening}", f"{opening}{opening}{closing}{closing}",
            f"{opening}\n{closing}{short}x{closing}end", f"{short}{closing}{opening}",
            f"<!-- bench:none -->{closing}", f"<!-- bench:none summary -->{closing}",
            f"{opening}{closing}{closing}", f"{opening}{short}{closing}")):
        found[f"marks {index}"] = text_of(outcome(tables.with_tables, text, rows, "doc", text=str))
    (tmp_path / "more").mkdir()
    row_files.append_rows(tmp_path / "more" / "a.jsonl", rows[:20])
    row_files.append_rows(tmp_path / "b.jsonl", rows[20:])
    for name, place in (("folder", tmp_path), ("file", tmp_path / "b.jsonl")):
        for text in (short + closing, opening + closing, f"{short}{closing}{opening}{closing}"):
            made = tables.full_tables(text, place)
            found[f"full {name} {text}".replace(": ", "")] = as_text(
                [(str(path.relative_to(tmp_path)), digest(content))
                 for path, content in made.items()])
            document = tmp_path / "doc.md"
            document.write_text(text)
            written = tables.rewrite(document, place)
            found[f"written {name} {text}".replace(": ", "")] = as_text(
                [(path.name, digest(path.read_text())) for path in written])
    recorded("bench_documents", found)


def test_files_of_rows(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    values = json.loads(row_files.json.dumps(row_files._without_empty(
        row("gossamer", 2.0, tail={"p99_us": 3.0}, notice="slow"))))
    others: dict[str, tuple[Any, ...]] = {key: (None, True, 0, 1, -1, 0.0, 0.5, -0.5, "a", [], {}, {
        "a": 1}, {"a": "b"}, {"a": -1}, {"a": 0}, {"a": None}, float("nan"), float("inf"),
        2**63 - 1, 2**63) for key in row_files.KEYS}
    for key, tried in others.items():
        accepted = []
        for value in tried:
            Path("a.jsonl").write_text(json.dumps({**values, key: value}) + "\n")
            text = outcome(row_files.read_rows, Path("a.jsonl"), text=lambda read: f"{len(read)}")
            accepted.append("yes" if text == "1" else text.rpartition("expected ")[2])
        found[f"values of {key}"] = as_text(accepted)
        Path("a.jsonl").write_text(json.dumps(
            {name: value for name, value in values.items() if name != key}))
        found[f"without {key}"] = outcome(row_files.read_rows, Path("a.jsonl"),
                                          text=lambda read: f"{len(read)}")[:70]
    for index, text in enumerate(("", "\n", "[]", "3", json.dumps({**values, "more": 1}),
                                  f"{json.dumps(values)}\n{json.dumps(values)}",
                                  f"{json.dumps(values)}\n[]\n")):
        Path("a.jsonl").write_text(text)
        found[f"text {index}"] = outcome(row_files.read_rows, Path("a.jsonl"),
                                         text=lambda read: f"{len(read)}")[:90]
    rows = [row("a", 1 / 3, speed_of_light_us=light, tail=tail, notice=notice)
            for light in (None, 0.25, 1 / 3, 0.5) for tail in ({}, {"p99_us": 2 / 3})
            for notice in ("", "slow")]
    found["csv"] = row_files.csv_bytes(rows).decode()
    for before in (None, "", "x", "x\n"):
        path = tmp_path / "new" / "b.jsonl" if before is None else Path("c.jsonl")
        if before is not None:
            path.write_text(before)
        row_files.append_rows(path, rows[-2:])
        found[f"appended to {before!r}"] = path.read_text()
    Path("folder.jsonl").mkdir()
    Path("file").write_text("")
    names = ("a.jsonl", "folder.jsonl", "file/b.jsonl", "none/b.jsonl", "none/deep/b.png")
    for name, suffix in itertools.product(names, (".jsonl", ".png")):
        found[f"writable {name} {suffix}"] = outcome(row_files.check_writable, "-o", Path(name),
                                                     suffix)
    recorded("bench_rows", found)


class Noted:
    """Stands for a figure, its panels and what is drawn on them, and notes each call."""

    def __init__(self, notes: list[str], name: str) -> None:
        self._notes, self._name = notes, name

    def __getattr__(self, name: str) -> Noted:
        return Noted(self._notes, f"{self._name}.{name}")

    def __call__(self, *values: Any, **options: Any) -> Any:
        self._notes.append(f"{self._name}{self._text(values)}{self._text(options)}")
        if self._name.endswith(".subplots"):
            panels = np.empty(values or (1, 1), object)
            for index in np.ndindex(panels.shape):
                panels[index] = Noted(self._notes, f"panel{index}")
            return panels if values else panels[0, 0]
        return (Noted(self._notes, "line"),) if self._name.endswith(".plot") else self

    def _text(self, value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(f"{key}={self._text(each)}" for key, each in value.items())
        if isinstance(value, list | tuple):
            return f"({', '.join(map(self._text, value))})"
        if isinstance(value, bool | int | float | str | None):
            return as_text(rounded(value))
        label = getattr(value, "get_label", lambda: "")()
        return f"{type(value).__name__} {label if isinstance(label, str) else ''}"


def test_charts(recorded: Recorded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    notes: list[str] = []

    def new_figure(*sizes: float) -> Noted:
        notes.append(f"figure {as_text(rounded(sizes))}")
        return Noted(notes, "figure")

    def drawn_text() -> str:
        text = "\n".join(notes)
        count = len(notes)
        notes.clear()
        return f"{count} {digest(text)} {text[:90]}"

    for module in (plots, figures, ladder_chart):
        monkeypatch.setattr(module, "new_figure", new_figure)
    for module in (plots, figures):
        monkeypatch.setattr(module, "as_png", lambda figure: b"png")
    found = {"no rows": outcome(plots.png, []), "no figures": outcome(figures.write, [], tmp_path)}
    for name, rows in draws():
        plots.png(rows)
        found[f"{name} plot"] = drawn_text()
        if name.startswith("sparse"):
            written = outcome(figures.write, rows, tmp_path, hidden=tmp_path, text=lambda paths: (
                " ".join(str(path.relative_to(tmp_path)) for path in paths)))
            found[f"{name} files"] = written
            found[f"{name} figures"] = drawn_text()
    rng = random.Random(3)
    for index in range(12):
        rows = [row(rng.choice([*ladder_chart._BARS, "cudnn"]), rng.choice(TIMES),
                    suite=rng.choice(["ladder", "ladder", "networks"]), case="mobilenetv2",
                    precision=rng.choice(["fp64", "fp32", "fp16"]),
                    machine=rng.choice(["Chip", "Chip 2"]), run_id=f"run{index % 3}",
                    date=f"2026-01-0{rng.randint(1, 4)}") for _ in range(1 + 4 * index)]
        for ladder in ladder_chart.ladders(rows):
            times = sorted((contender, precision, each.median_us)
                           for (contender, precision), each in ladder.times.items())
            ladder_chart.ladder_figure(ladder) if times else None
            found[f"ladder {index} {ladder.where}"] = f"{len(times)} {digest(times)} {drawn_text()}"
    recorded("bench_charts", found)


class MadeCase:
    """A case for the tables of the terminal."""

    def __init__(self, notes: tuple[str, ...], density: float) -> None:
        self.name, self.batch, self.flops, self.least_bytes = "net", 3, 12345, 2048
        self.suite, self.notes, self.density = "networks", notes, density


def test_results_in_the_terminal(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    said: set[str] = set()
    for index, (name, rows) in enumerate(draws()):
        if index % 4:
            continue
        one = [each for each in rows if (each.suite, each.case, each.batch, each.run_id) == (
            rows[0].suite, rows[0].case, rows[0].batch, rows[0].run_id)]
        case: Any = MadeCase(("a note",) * (index % 3), 0.25)
        result = Result(case, one, {"peer": "not here"} if index % 8 else {},
                        {"other": "broken"} if index % 12 else {},
                        "slow" if index % 5 else "", 1.25)
        terminal.print_result(result, said if index % 16 else None)
        out = capsys.readouterr().out
        found[f"{name} printed"] = f"{digest(out)} {out[-150:]}"
        shown = terminal.result_dict(result)
        found[f"{name} as JSON"] = as_text({key: value for key, value in shown.items()
                                            if key != "rows"}) + digest(shown["rows"])
    recorded("bench_terminal", found)
