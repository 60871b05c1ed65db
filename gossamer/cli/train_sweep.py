"""The option --sweep of the verb `train`: find the best settings for the training."""

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
    """The options of a sweep.

    grid: values to try for each parameter, in the form that sweep() accepts; None without a sweep.
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
        """Check and return the options. Raises InputError if they are wrong or contradictory."""
        if text is None:
            for option, value in (("--folds", folds), ("--halving", halving), ("--table", table)):
                if value is not None:
                    raise InputError(f"{option} {value}: needs --sweep GRID")
            return SweepOptions(None, None, None, None)
        if folds is not None and validation is not None:
            raise InputError(f"--folds {folds}: --validation {validation} already scores the "
                             "settings; use only one of the two options")
        if validation is None and folds is None:
            folds = FOLDS
        return SweepOptions(_grid(text), folds, halving, table)


def _grid(text: str) -> Any:
    """Parse the grid of --sweep: JSON, or the name of a .json file."""
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
    """Run a sweep, set the network's parameters to the best ones, and return the result.

    The file of --table is written even if Ctrl-C ends the sweep and the process.

    checkpoint: the file of --checkpoint. The sweep's own checkpoints are in a folder beside it.
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
    """Return the best values of the grid's parameters."""
    folds = result.scores.shape[1]
    row = result.rows[result.best_config * folds]
    return {name.removeprefix("param_"): value for name, value in row.items()
            if name.startswith("param_")}


def line(result: SweepResult, options: SweepOptions, labelled: bool) -> str:
    """Return a line of text that summarises a sweep."""
    settings = ", ".join(f"{name} {value}" for name, value in best_settings(result).items())
    scores = result.scores
    by = "" if options.folds is None else f", mean of {options.folds} folds"
    return (f"sweep: {counted(len(scores), 'setting')}; best: {settings or 'the only one'} "
            f"({train_output.score_name(labelled)} "
            f"{train_output.score_text(float(scores[result.best_config].mean()), labelled)}{by})"
            + ("" if options.table is None else f"; written: {options.table}"))
