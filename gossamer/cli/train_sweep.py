"""The option --sweep of the verb `train`: the settings that do best are trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from gossamer.cli import table_files, train_output
from gossamer.cli.train_data import TrainingData
from gossamer.errors import InputError, quoted
from gossamer.io import terminal
from gossamer.plan.candidate import counted
from gossamer.train import MLP
from gossamer.train.sweep import SweepResult, sweep

FOLDS = 5
"""The default of --folds."""


@dataclass(frozen=True)
class SweepOptions:
    """What the command line says of a sweep.

    grid: values to try for each parameter, as sweep() takes them; None without a sweep.
    folds, halving: arguments of sweep(), or None.
    table: file for the rows, or None.
    """

    grid: Any
    folds: int | None
    halving: int | None
    table: Path | None

    @staticmethod
    def of(text: str | None, folds: int | None, halving: int | None, table: Path | None,
           validation: str | None) -> SweepOptions:
        """Return the options. Raises InputError where they are wrong or contradict each other."""
        if text is None:
            for option, value in (("--folds", folds), ("--halving", halving), ("--table", table)):
                if value is not None:
                    raise InputError(f"{option} {value}: needs --sweep GRID")
            return SweepOptions(None, None, None, None)
        if folds is not None and validation is not None:
            raise InputError(f"--folds {folds}: --validation {validation} scores the settings; "
                             "give one of them")
        if validation is None and folds is None:
            folds = FOLDS
        return SweepOptions(_grid(text), folds, halving, table)


def _grid(text: str) -> Any:
    """Return the grid that --sweep gives: JSON, or the name of a file with it."""
    try:
        content = Path(text).read_text() if text.endswith(".json") else text
        grid = json.loads(content)
    except OSError as error:
        raise InputError(f"--sweep {text}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        grid = None
    if not isinstance(grid, dict | list):
        raise InputError(f"--sweep {quoted(text)}: expected JSON, or a .json file with it, such as "
                         """'{"learning_rate": [0.001, 0.01], "hidden": [50, [100, 50]]}'""")
    return grid


def choose(mlp: MLP, data: TrainingData, options: SweepOptions, checkpoint: Path | None,
           resume: bool) -> SweepResult:
    """Set the parameters of the network to the best of the grid, and return the sweep.

    The table is written, also where Ctrl-C ends the sweep and the process.

    checkpoint: file of --checkpoint, beside which the sweep has a folder.
    """
    folder = None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}.sweep")
    is_begun = folder is not None and any(folder.glob("*.checkpoint"))
    held_out = data.held_out if options.folds is None else None
    try:
        result = sweep(mlp, options.grid, data.training.x, data.training.y, folds=options.folds,
                       validation=None if held_out is None else (held_out.x, held_out.y),
                       halving=options.halving, checkpoint=folder, resume=resume and is_begun)
    except KeyboardInterrupt as error:
        rows = getattr(error, "result", SweepResult([], [])).rows
        if rows:
            _write(options.table, rows)
        done = sum(row["is_trained"] for row in rows)
        kept = (f"; {folder} keeps them for --resume" if folder is not None
                else "; --checkpoint FILE would keep them for --resume")
        terminal.notice(f"interrupted after {done} of {len(rows)} networks of the sweep{kept}",
                        "error")
        raise typer.Exit(130) from None
    _write(options.table, result.rows)
    mlp.set_params(**best_settings(result))
    return result


def _write(table: Path | None, rows: list[dict[str, Any]]) -> None:
    if table is not None:
        table_files.write(table, f"--table {table}", rows)


def best_settings(result: SweepResult) -> dict[str, Any]:
    """Return the parameters of the grid in the best combination."""
    folds = result.scores.shape[1]
    row = result.rows[result.best_config * folds]
    return {name.removeprefix("param_"): value for name, value in row.items()
            if name.startswith("param_")}


def line(result: SweepResult, options: SweepOptions, labelled: bool) -> str:
    """Return the line that tells of a sweep."""
    settings = ", ".join(f"{name} {value}" for name, value in best_settings(result).items())
    scores = result.scores
    by = "" if options.folds is None else f", mean of {options.folds} folds"
    return (f"sweep: {counted(len(scores), 'setting')}; best: {settings or 'the only one'} "
            f"({train_output.score_name(labelled)} "
            f"{train_output.score_text(float(scores[result.best_config].mean()), labelled)}{by})"
            + ("" if options.table is None else f"; written: {options.table}"))
