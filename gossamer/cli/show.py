"""What the command line prints: tables, notices, the best classes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gossamer.errors import InputError

IMAGENET = Path(__file__).parents[1] / "io" / "labels" / "imagenet.txt"
_PIPE_WIDTH = 500
_LEAST_WIDTH = 6  # of a column that is cut
_LEAST_SPARE = 12  # of one that can be left out instead


def notice(message: object, kind: str = "notice") -> None:
    """One line on stderr."""
    print(f"{kind}: {' '.join(str(message).split())}", file=sys.stderr)


def print_json(value: Any) -> None:
    """One JSON document on stdout; numbers that JSON lacks (NaN, infinity) become null."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False))


def print_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]],
                spare: Sequence[str] = ()) -> None:
    """Rows by key under headings; a column in which every cell is a number is right-aligned.

    Where a terminal is too narrow, spare columns are left out, in their order, and named below;
    where that is not enough, cells are cut."""
    shown = [{key: one_line(_cell(row.get(key))) for key in columns} for row in rows]
    # a pipe has no width: lines must not be cut as if it had 80 columns
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    cells = {key: [line[key] for line in shown if line[key]] for key in columns}
    widths = _widths({key: max(map(cell_len, [heading, *cells[key]]))
                      for key, heading in columns.items()},
                     [key for key in columns if not _numeric(cells[key])], spare, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for key, width in widths.items():
        table.add_column(columns[key], justify="right" if _numeric(cells[key]) else "left",
                         no_wrap=True, overflow="ellipsis", max_width=width)
    for line in shown:
        table.add_row(*(Text(line[key]) for key in widths))
    with console.capture() as captured:
        console.print(table)
    for printed in captured.get().splitlines():
        print(printed.rstrip())
    if left_out := [heading for key, heading in columns.items() if key not in widths]:
        print(f"(left out in a narrow terminal: {', '.join(left_out)}; a pipe gets all, "
              "such as | less -S)")


def _widths(wanted: Mapping[str, int], may_cut: Collection[str], spare: Sequence[str],
            available: int) -> dict[str, int]:
    """The widths of the columns that are shown, two apart. (rich would take as much from each.)

    The widest that may be cut is cut first: a spare one, or any where none is left."""
    widths, left = dict(wanted), [key for key in spare if wanted[key]]
    while (excess := sum(widths.values()) + 2 * (len(widths) - 1) - available) > 0:
        least = _LEAST_SPARE if left else _LEAST_WIDTH
        cuttable = [key for key in left or widths if key in may_cut and widths[key] > least]
        if excess <= sum(widths[key] - least for key in cuttable):
            for _ in range(excess):
                widths[max(cuttable, key=widths.__getitem__)] -= 1
        elif left:
            del widths[left.pop(0)]
        else:
            widths.update(dict.fromkeys(cuttable, least))
            break
    return widths


def one_line(text: str) -> str:
    """The text with line breaks and other control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
                   for c in text)


def human(count: float) -> str:
    """A count in thousands, millions or billions: 3.50 M."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(count) >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"


def bytes_text(count: int) -> str:
    """A number of bytes in binary units: 13.5 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def labels(path: Path | None, classes: int, own: Sequence[str] = ()) -> Sequence[str] | None:
    """One name a class, from a text file with one a line; None: the network's own names, else the
    ImageNet names where it has 1000 classes, else none.

    Raises InputError when the file cannot be read or has another number of names.
    """
    if path is None and len(own) == classes:
        return own
    if path is None and classes != 1000:
        return None
    names = read_names(path or IMAGENET)
    if len(names) != classes:
        raise InputError(f"--labels {path}: has {len(names)} names, one a line; the "
                         f"network has {classes} classes")
    return names


def read_names(path: Path) -> list[str]:
    """The lines of the file that --labels names. Raises InputError when it cannot be read."""
    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"--labels {path}: is no text in UTF-8, expected one name a line"
                         ) from None
    except OSError as error:
        raise InputError(f"--labels {path}: {error.strerror}") from None
    while names and not names[-1].strip():
        names.pop()
    return names


def is_scores(output: np.ndarray, rows: int) -> bool:
    """Whether an output can be read as one score a class for each of the rows: floats of shape
    (rows, classes[, 1, 1]), two classes or more."""
    return (output.ndim >= 2 and len(output) == rows and output.shape[1] > 1
            and math.prod(output.shape[2:]) == 1 and np.issubdtype(output.dtype, np.floating))


def best(scores: np.ndarray, count: int, names: Sequence[str] | None,
         independent: bool = False) -> list[dict[str, Any]]:
    """The classes of highest score of one image, best first, ties to the first class: class,
    name and probability (softmax of the scores unless they are probabilities already), or score
    where the scores are independent of each other."""
    scores = scores.reshape(-1).astype(np.float64)
    probabilities = scores
    if not independent and not (scores.min() >= 0 and abs(scores.sum() - 1) < 1e-3):
        powers = np.exp(scores - scores.max())
        probabilities = powers / powers.sum()
    order = np.argsort(-scores, kind="stable")[:count]
    return [{"class": int(index), "name": names[index] if names else None,
             "score" if independent else "probability": float(probabilities[index])}
            for index in order]


def shape_text(shape: Iterable[int | str | None]) -> str:
    """A shape as 1x3x224x224, with N for what is open."""
    return "x".join("N" if size is None else str(size) for size in shape) or "scalar"


def summary(output: np.ndarray) -> dict[str, Any]:
    """An output's shape, dtype, least and greatest number (None where it has no numbers)."""
    numbers = output.size and output.dtype != np.bool_
    return {"shape": list(output.shape), "dtype": str(output.dtype),
            "min": output.min() if numbers else None, "max": output.max() if numbers else None}


def summary_line(name: str, summary: Mapping[str, Any]) -> str:
    """One line on an output, from summary()."""
    text = f"{one_line(name)}: {shape_text(summary['shape'])} {summary['dtype']}"
    if summary["min"] is not None:
        text += f", {summary['min']:.6g} to {summary['max']:.6g}"
    return text


def print_summary(rows: Iterable[Mapping[str, Any]]) -> None:
    """The nodes of a network's file, as `gossamer inspect` shows them."""
    shown = [{**row, "output_shape": "x".join(map(str, row["output_shape"])),
              "parameters": str(row["parameters"] or ""),
              "flops": human(row["flops"]) if row["flops"] else "",
              "density": None if row["density"] is None else f"{row['density']:.1%}"}
             for row in rows]
    print_table({"name": "node", "op": "op", "output_shape": "output", "parameters":
                 "parameters", "flops": "FLOPs", "density": "density"}, shown)


def print_answers(answers: Sequence[Mapping[str, Any]]) -> None:
    """The best classes of each input, as best() gives them."""
    for answer in answers:
        print(f"\n{one_line(answer['input'])}")
        for line in answer["top"]:
            name = line["name"] or f"class {line['class']}"
            told = (f"score {line['score']:.4f}" if "score" in line
                    else f"{line['probability']:8.2%}")
            print(f"{told}  {one_line(name)}")


def print_report(report: Any) -> None:
    """The per-layer table of a profiled plan's report, and the time from end to end."""
    rows = [{**row, "density": None if row["density"] is None else f"{row['density']:.0%}",
             "median_us": f"{row['median_us']:.1f}", "share": f"{row['share']:.1%}"}
            for row in report.rows]
    print_table({"layer": "layer", "op": "op", "problem": "problem", "density": "density",
                 "algorithm": "algorithm", "config": "config", "device": "device",
                 "median_us": "us", "share": "share"}, rows,
                spare=("config", "op", "device", "problem", "density"))
    print(f"end to end, batch {report.batch}: {report.end_to_end_us:.1f} us")
    if report.shares:
        print(report.shares_line)


def report_dict(report: Any) -> dict[str, Any]:
    """A plan's report as plain data."""
    return {"device": report.device, "batch": report.batch, "end_to_end_us": report.end_to_end_us,
            "end_to_end_cached": report.end_to_end_cached, "shares": dict(report.shares),
            "build_s": report.build_s, "device_bytes": report.device_bytes,
            "accuracy": None if report.accuracy is None else asdict(report.accuracy),
            "notes": list(report.notes), "plans": list(report.plans), "rows": list(report.rows)}


def _numeric(cells: Sequence[str]) -> bool:
    return all(cell.rstrip("%TGMkB i").replace(".", "", 1).isdigit() for cell in cells)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, tuple | list):
        return "x".join(map(str, value))
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
