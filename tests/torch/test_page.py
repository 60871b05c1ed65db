"""The code of the page on PyTorch runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import gossamer
from tests.torch.single_modules import LEFT, page_table, table

PAGE = Path(gossamer.__file__).parents[1] / "docs" / "pytorch.md"
COMPILE = 'backend="gossamer"'


def test_table_of_what_is_left_to_torch():
    assert "\n".join(page_table()) in PAGE.read_text()
    networks = table()
    assert set(LEFT) <= set(networks)
    assert f"Of {len(networks)} networks" in PAGE.read_text()
    assert f"gossamer computes {len(networks) - len(LEFT)}, and torch" in " ".join(
        PAGE.read_text().split())


@pytest.mark.slow
def test_tutorial(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code = "\n".join(blocks[1:]).replace(COMPILE, "backend=gossamer.torch.backend.backend")
    assert COMPILE in PAGE.read_text()
    program = tmp_path / "tutorial.py"
    program.write_text("import gossamer.torch.backend\n" + code)
    run = subprocess.run([sys.executable, "-W", "ignore", program], cwd=tmp_path,
                         env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stderr
    found = dict(re.findall(r"^(trained|pruned|optimised): ([0-9.]+)$", run.stdout, re.MULTILINE))
    assert float(found["trained"]) > 0.85 and float(found["pruned"]) > 0.85
    assert abs(float(found["optimised"]) - float(found["pruned"])) < 0.004
    assert "4 layers with zeros among the weights" in run.stdout
    assert re.search(r"gossamer computes (\d+) of \1 operators in 1 part", run.stdout)
