"""Texts that differ from their files are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import Golden


def test_sections_of_a_table(tmp_path: Path) -> None:
    write, check = Golden(True, tmp_path), Golden(False, tmp_path)
    write.table("a.txt", "second", {"x": "1\n2", "y": "3"})
    write.table("a.txt", "first", {"z": ""})
    assert (tmp_path / "a.txt").read_text() == "## first\nz: \n\n## second\nx: 1\\n2\ny: 3\n\n"
    check.table("a.txt", "second", {"x": "1\n2", "y": "3"})
    check.table("a.txt", "first", {"z": ""})
    for rows, shown in (({"x": "1\n2"}, "-y: 3"), ({"x": "1\n2", "y": "4"}, r"\+y: 4"),
                        ({"x": "1\n2", "y": "3", "z": "5"}, r"\+z: 5")):
        with pytest.raises(pytest.fail.Exception, match=shown):
            check.table("a.txt", "second", rows)
