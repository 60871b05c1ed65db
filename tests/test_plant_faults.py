"""The tool that plants faults: which faults an expression can have, and that files are whole."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOL = runpy.run_path(str(ROOT / "tools" / "plant_faults.py"))

SOURCE = """
def f(x: "1 < 2", n):
    text = f"{x < n}" + "s"
    if x is None or 0 <= n < 3:
        return x[1:] * n
    return range(n)
"""


def test_faults_of_expressions() -> None:
    faults = list(TOOL["faults_of"](Path("f.py"), SOURCE.encode()))
    assert sorted((fault.line, fault.kind, fault.new) for fault in faults) == [
        (4, "bound off by one", "0 <= n < 3 + 1"),
        (4, "comparison flipped", "x is not None"),
        (4, "term dropped", "0 <= n < 3"),
        (4, "term dropped", "x is None"),
        (5, "bound off by one", "x[1 + 1:]"),
        (5, "term dropped", "x[1:]"),
        (6, "bound off by one", "range(n + 1)"),
    ]
    for fault in faults:
        planted = ast.unparse(ast.parse(fault.planted(SOURCE.encode())))
        assert planted != ast.unparse(ast.parse(SOURCE)) and fault.new in planted


def test_faults_break_no_rule_of_style() -> None:
    source = "total = f(rows * tiles)\nlast = rows * (columns - 1)\n"
    planted = {fault.planted(source.encode()).decode()
               for fault in TOOL["faults_of"](Path("f.py"), source.encode())}
    assert planted == {"total = f(rows)\nlast = rows * (columns - 1)\n",
                       "total = f(rows * tiles)\nlast = rows\n",
                       "total = f(rows * tiles)\nlast = rows * (columns)\n"}
    end = 79 * "x"
    long = f"if first < 9 and {end}:\n    pass\n"
    (bound,) = (fault for fault in TOOL["faults_of"](Path("f.py"), long.encode())
                if fault.kind == "bound off by one")
    assert bound.planted(long.encode()).decode() == (
        f"if (\nfirst < 9 + 1) and {end}:\n    pass\n")


def test_faults_that_no_test_here_can_find_are_left_out() -> None:
    expected = "def _cost(a, b):\n    def cycles():\n        return a * b\n    return a + b\n"
    models = list(TOOL["faults_of"](Path("gossamer/ops/f.py"), expected.encode()))
    assert {fault.function for fault in models} == {"_cost", "cycles"}
    assert not any(map(TOOL["can_be_found"], models))
    assert TOOL["imported"](b"""
import numpy.linalg
from torch import fx
if TYPE_CHECKING:
    import ray
def later():
    import jax
""") == {"numpy", "torch", "ray"}


def test_faults_are_drawn_of_every_kind_and_are_the_same_for_a_seed() -> None:
    faults = TOOL["draw"](9, 1)
    assert len({fault.kind for fault in faults}) == 3 and len(set(faults)) == 9
    again = TOOL["draw"](9, 1)
    assert [fault.new for fault in again] == [fault.new for fault in faults]
    for fault in faults:
        ast.parse(fault.planted((ROOT / fault.path).read_bytes()))
