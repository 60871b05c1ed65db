"""The verb `run` on folders of pictures and on tables, with one row per input."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gossamer
from gossamer.cli import row_files
from gossamer.cli.arguments import AnyPlan, device_of, tell_of_threads
from gossamer.cli.report import input_bar, print_report
from gossamer.cli.row_files import Row, RowFile
from gossamer.cli.run_inputs import Chunk, Entry, RowInputs, is_table, scored_classes
from gossamer.errors import InputError, one_line
from gossamer.io import output_files, terminal
from gossamer.io.images import Preprocessing
from gossamer.io.text import shape_text
from gossamer.model import outputs as network_outputs
from gossamer.ops.host_threads import ALL, Threads
from gossamer.plan.open_plan import OpenPlan
from gossamer.plan.program import responsive

if TYPE_CHECKING:
    from gossamer.model.graph import Graph


OWN_SUFFIXES = (".jsonl", ".csv", ".parquet")
"""Suffixes of --output that are specific to files of rows."""


Answer = tuple[list[Entry], Any]
"""Consecutive inputs, and the outputs of the readable inputs among them. The outputs are None if no
input is readable."""


@dataclass(frozen=True)
class RowOptions:
    """The options of `run` for rows.

    output: the file of rows; None for stdout.
    resume: whether to continue an existing file of rows.
    labels: the file of class names.
    top: number of best classes in a row.
    """

    output: str | None
    resume: bool
    labels: Path | None
    top: int

    @property
    def option_text(self) -> str:
        return f"--output {self.output}"


def check(options: RowOptions, graph: Graph, files_read: Sequence[str]) -> None:
    """Raise InputError if rows cannot be written as requested by the options."""
    if options.output is None:
        if options.resume:
            raise InputError("--resume: needs --output FILE.jsonl or FILE.csv, the file to "
                             "continue")
        return
    path = Path(options.output)
    row_files.check(path, options.option_text, len(graph.outputs))
    if options.resume and path.suffix not in row_files.GROWING:
        raise InputError(f"--resume: cannot continue {options.output}, only "
                         f"{' and '.join(row_files.GROWING)} files")
    output_files.check_place(options.option_text, path, files_read)


def run_rows(model: str, saved_plan: AnyPlan | None, inputs: RowInputs,
             options: RowOptions, device: str | None, *, strict: bool, table: bool,
             as_json: bool, remote: RayAnswers | None = None,
             threads: Threads | None = None) -> None:
    """Run a network, write one row per input, and print a summary.

    saved_plan: the plan of the MODEL argument; None if MODEL is a network.
    table: whether to time the layers and print their times.
    remote: computation on a cluster; None to compute on the plan's device.
    Raises InputError if no input can be read, or rows cannot be written.
    """
    documents: list[dict[str, Any]] = []
    if options.output is not None:
        rows = row_files.open_rows(Path(options.output), options.option_text, inputs.key,
                                   options.resume)
    else:
        rows = _PrintedRows(inputs.key, documents if as_json else None)
    left = [index for index, name in enumerate(inputs.names) if str(name) not in rows.done]
    plan = saved_plan or gossamer.compile(
        inputs.graph, device=device if remote is None else "host", strict=strict,
        threads=threads or ALL)
    device_name, description = device_of(plan) if remote is None else remote.devices
    tell_of_threads(threads, device_name)
    if not as_json:
        print(f"device: {device_name} ({description})")
    loop = _Loop(model, plan, inputs, options, device_name, remote)
    with rows:
        loop.run(rows, left)
    report = plan.profile(inputs.batch) if table else None
    summary = loop.summary(len(inputs.names) - len(left))
    if as_json:
        terminal.print_json({"model": model, "device": device_name,
                             "description": description, "batch": inputs.batch,
                             **summary, "output": options.output, "results": documents})
        return
    if report is not None:
        print_report(report)
    print(_summary_text(inputs.key, summary))
    if options.output is not None:
        terminal.print_line(f"written: {options.output}")


class _Loop:
    """The computation of rows from inputs, by a plan or on a cluster.

    unreadable: name and error of each unreadable input.
    broken: names of the inputs with a non-finite output.
    computed: number of inputs with computed outputs.
    seconds: time from the first input to the last row.
    """

    def __init__(self, model: str, plan: AnyPlan, inputs: RowInputs, options: RowOptions,
                 devices: str, remote: RayAnswers | None) -> None:
        self._devices = devices
        self._remote = remote
        self._model = model
        self._plan = plan
        self._inputs = inputs
        self._options = options
        self._entries: deque[list[Entry]] = deque()
        self._last: list[Entry] = []
        self._classifies: bool | None = None
        self._names: Sequence[str] | None = None
        self.unreadable: list[str] = []
        self.broken: list[str] = []
        self.computed = 0
        self.seconds = 0.0

    def run(self, rows: RowFile, left: Sequence[int]) -> None:
        """Write the rows of the inputs with the indices `left`."""
        start = time.perf_counter()
        count = len(self._inputs.names)
        with responsive(), input_bar() as bar, closing(self._answers(left)) as answers:
            task = bar.add_task(f"running on {self._devices}", total=len(left))
            for entries, result in answers:
                made = self._rows(entries, result)
                rows.write(made, count)
                seconds = time.perf_counter() - start
                bar.update(task, advance=len(made), description=(
                    f"{_rate(self.computed / seconds)} per second on {self._devices}"))
        self.seconds = time.perf_counter() - start
        if left and len(self.unreadable) == count:
            raise InputError(f"{self.unreadable[0]}; none of {count} can be read")
        for what, names in (("cannot be read", self.unreadable),
                            ("have an output with NaN or infinite values", self.broken)):
            if names:
                terminal.notice(f"{len(names)} of {len(left)} {what}, see their rows: {names[0]}"
                                f"{', ...' if len(names) > 1 else ''}", "warning")

    def summary(self, before: int) -> dict[str, Any]:
        """Return the counts and the duration of the run.

        before: number of rows already in the file.
        """
        return {"rows": self.computed + len(self.unreadable), "unreadable": len(self.unreadable),
                "rows_before": before, "seconds": self.seconds,
                "a_second": self.computed / self.seconds if self.computed else 0.0}

    def _answers(self, left: Sequence[int]) -> Generator[Answer, None, None]:
        """Yield consecutive inputs with their outputs, in order."""
        if self._remote is not None:
            yield from self._remote.answers(left)
            return
        arrays = self._arrays(self._inputs.chunks(left))
        if isinstance(self._plan, OpenPlan):
            for array in arrays:
                yield self._entries.popleft(), self._plan(array)
        else:
            with self._plan.stream(arrays) as results:
                for result in results:
                    yield self._entries.popleft(), result
        if self._last:
            yield self._last, None

    def _arrays(self, chunks: Iterator[Chunk]) -> Iterator[np.ndarray]:
        """Yield the arrays of the chunks.

        The entries of each chunk are kept in _entries until the chunk's result is available. The
        entries of a final chunk without an array are kept in _last.
        """
        for entries, array in chunks:
            if array is None:
                self._last = entries
            else:
                self._entries.append(entries)
                yield array

    def _rows(self, entries: Sequence[Entry], result: Any) -> list[Row]:
        """Return the rows of inputs.

        result: the outputs of the readable inputs.
        """
        graph, count = self._plan.graph, sum(not entry.error for entry in entries)
        arrays = result if isinstance(result, tuple) else () if result is None else (result,)
        outputs = {info.name: array for info, array in zip(graph.outputs, arrays, strict=False)}
        for output, array in outputs.items():
            if array.ndim == 0 or len(array) != count:
                raise InputError(f"{self._model}: output {output!r} is {shape_text(array.shape)} "
                                 f"for {count} inputs, expected one row per input; use --input "
                                 "X.npy")
        if outputs and self._classifies is None:
            self._classifies, self._names = scored_classes(
                graph, outputs[graph.outputs[0].name], count, self._options.labels,
                are_photos=self._inputs.key == "file")
        broken = {row for array in outputs.values()
                  for row in network_outputs.broken_rows(array, count)}
        classes = self._classes(outputs)
        rows: list[Row] = []
        position = 0
        for entry in entries:
            name: str | int = self._inputs.names[entry.index]
            label = None if self._inputs.labels is None else self._inputs.labels[entry.index]
            if entry.error:
                self.unreadable.append(f"{name}: {entry.error}")
                rows.append(Row(name, label, entry.error))
                continue
            own = {output: array[position] for output, array in outputs.items()}
            if position in broken:
                self.broken.append(str(name))
                rows.append(Row(name, label, "an output has NaN or infinite values", outputs=own))
            else:
                rows.append(Row(name, label, classes=None if classes is None else classes[position],
                                outputs=own))
            position += 1
        self.computed += count
        return rows

    def _classes(self, outputs: dict[str, np.ndarray]) -> list[list[dict[str, Any]]] | None:
        """Return the best classes of each input, or None without class scores."""
        if not outputs or not self._classifies:
            return None
        graph = self._plan.graph
        with np.errstate(invalid="ignore"):  # rows with NaN or infinity
            best = network_outputs.best_classes_of_each(
                outputs[graph.outputs[0].name], self._options.top, self._names,
                graph.metadata.independent_scores)
        number = "score" if graph.metadata.independent_scores else "probability"
        for lines in best:
            for line in lines:
                line[number] = float(f"{line[number]:.7g}")
        return best


class _PrintedRows(RowFile):
    """Rows that are printed one per line, or collected in `documents` for JSON."""

    _is_begun = True

    def __init__(self, key: str, documents: list[dict[str, Any]] | None) -> None:
        super().__init__(Path(), "", key)
        self._documents = documents

    def _add(self, rows: Sequence[Row]) -> None:
        if self._documents is not None:
            self._documents += [row.document(self._key) for row in rows]
            return
        for row in rows:
            print(f"{one_line(str(row.name))}: {_row_text(row)}")
        sys.stdout.flush()


def _row_text(row: Row) -> str:
    """Return the error, the best class or the outputs of a row."""
    if row.error:
        return row.error
    if row.classes is None:
        return ", ".join(f"{name} {np.array2string(values.reshape(-1), threshold=8, precision=5)}"
                         for name, values in row.outputs.items())
    best = row.classes[0]
    number = (f"score {best['score']:.4f}" if "score" in best
              else f"{best['probability']:.2%}")
    return f"{number} {one_line(best['name'] or 'class ' + str(best['class']))}"


def _rate(a_second: float) -> str:
    return f"{a_second:,.0f}" if a_second >= 10 else f"{a_second:.3g}"


def _summary_text(key: str, summary: dict[str, Any]) -> str:
    what = "pictures" if key == "file" else "samples"
    text = (f"{summary['rows']} {what} in {summary['seconds']:.1f} s, "
            f"{_rate(summary['a_second'])} per second")
    if summary["unreadable"]:
        text += f"; {summary['unreadable']} could not be read"
    if summary["rows_before"]:
        text += f"; {summary['rows_before']} rows existed already"
    return text


class RayAnswers:
    """Results computed by a Ray cluster. The cluster's workers read the pictures.

    address: the value of --ray.
    model: the file of a saved plan, or the graph of a network.
    device: the device of each worker.
    devices: "ray" and the number of machines, shown instead of a device's name and description.
    """

    def __init__(self, address: str, model: Any, inputs: RowInputs, prepare: Preprocessing,
                 device: str | None) -> None:
        from gossamer.ray import connect

        try:
            self._ray = connect(address)
        except InputError as error:
            raise InputError(f"--ray {address}: {error}") from None
        # the verb shows its own progress
        self._ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        self._model = model
        self._inputs = inputs
        self._prepare = prepare
        self._device = device
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        self.devices = "ray", f"{nodes} machine{'s' if nodes > 1 else ''} of a cluster"

    def answers(self, left: Sequence[int]) -> Iterator[Answer]:
        """Yield the pictures with the indices `left` in batches, in order, with their outputs."""
        from gossamer.ray import map_pictures

        if not left:
            return
        data = self._ray.data.from_items(
            [{"index": index, "file": str(self._inputs.names[index])} for index in left],
            override_num_blocks=max(1, len(left) // (4 * self._inputs.batch)))
        rows = map_pictures(data, self._model, self._prepare, batch=self._inputs.batch,
                            device=self._device)
        names = [info.name for info in self._inputs.graph.outputs]
        for block in rows.iter_batches(batch_size=self._inputs.batch, batch_format="numpy"):
            entries = [Entry(int(index), str(error)) for index, error
                       in zip(block["index"], block["error"], strict=True)]
            is_read = np.array([not entry.error for entry in entries])
            yield entries, (tuple(block[name][is_read] for name in names) if is_read.any()
                            else None)


def check_ray(sources: Sequence[str], table: bool) -> None:
    """Raise InputError for inputs or options that a cluster does not support."""
    if any(map(is_table, sources)):
        raise InputError("--ray: needs images; a table runs faster on one machine")
    if table:
        raise InputError("--ray: cannot time the layers of workers; omit --table")
