"""Tests, without JAX, that the table of JAX's functions is complete."""

from __future__ import annotations

import ast
from pathlib import Path

from gossamer.expression import FUNCTIONS
from gossamer_bench import peers


def test_every_function_has_one_of_jax() -> None:
    tree = ast.parse(Path(peers.__path__[0], "expression_jax.py").read_text(encoding="utf-8"))
    (table,) = (node.value for node in tree.body if isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name) and node.target.id == "_FUNCTIONS")
    assert isinstance(table, ast.Dict)
    names = [key.value for key in table.keys if isinstance(key, ast.Constant)]
    assert sorted(names) == sorted(FUNCTIONS)
