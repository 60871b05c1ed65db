"""Rows of bulk checks, which survive crashes and are continued."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.networks.rows import rows_of, run_all


def ends(outcome: str) -> dict[str, Any]:
    """Returns a row with an outcome, or ends its process."""
    if outcome == "end":
        os._exit(3)
    return {"outcome": outcome, "pid": os.getpid()}


def tasks(*outcomes: str) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
    return [({"network": index}, (outcome,)) for index, outcome in enumerate(outcomes)]


def test_a_process_that_ends_is_a_row_and_the_rest_is_run(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    assert run_all(tasks("ok", "end", "ok"), ends, file) == 1
    first, second, third = rows_of(file)
    assert second["outcome"] == "crashed: its process ended"
    assert first["pid"] != third["pid"]
    assert capsys.readouterr().out.splitlines()[-1].startswith("3 rows: 1 crashed, 2 ok; ")


def test_rows_of_a_file_are_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for _ in range(2):
        assert run_all(tasks("ok"), ends, file) == 0
    assert len(rows_of(file)) == 1
    assert run_all(tasks("ok", "ok"), ends, file, minutes=0) == 0
    assert len(rows_of(file)) == 1
