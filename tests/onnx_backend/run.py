"""Runs a backend test with gossamer or with ONNX Runtime, and says what became of it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime

import gossamer
from gossamer.errors import GossamerError
from tests.onnx_backend.cases import Case

PASSED = "passed"


def by_gossamer(case: Case, device: str = "host") -> str:
    """Return PASSED, or why gossamer does not pass a case on a device."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = gossamer.compile(case.model.SerializeToString(), device)
            names = [info.name for info in plan.inputs]
            for inputs, expected in case.data_sets:
                given = dict(zip((info.name for info in case.model.graph.input), inputs,
                                 strict=False))
                result = plan(*[_as(given[name], info.dtype)
                                for name, info in zip(names, plan.inputs, strict=True)])
                outputs = result if isinstance(result, tuple) else (result,)
                if why := difference(case, outputs, expected):
                    return f"wrong: {why}"
    except GossamerError as error:
        return f"refused: {reason(str(error))}"
    except Exception as error:
        return f"crashed: {type(error).__name__}: {reason(str(error))}"
    return PASSED


def _as(value: Any, dtype: str) -> Any:
    """Return a value in the dtype that a plan takes, where that is one of numbers."""
    is_number = isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OUS"
    return np.asarray(value, dtype) if is_number and hasattr(np, dtype) else value


def by_onnxruntime(case: Case) -> str:
    """Return PASSED, or why ONNX Runtime does not pass a case."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(case.model.SerializeToString(), options,
                                               providers=["CPUExecutionProvider"])
        for inputs, expected in case.data_sets:
            names = [info.name for info in case.model.graph.input]
            outputs = session.run(None, dict(zip(names, inputs, strict=False)))
            if why := difference(case, outputs, expected):
                return f"wrong: {why}"
    except Exception as error:
        return f"refused: {reason(str(error))}"
    return PASSED


def difference(case: Case, outputs: Sequence[Any], expected: Sequence[Any]) -> str:
    """Return in which way outputs are not those expected.

    "" where they are.
    """
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs, expected {len(expected)}"
    for output, wanted in zip(outputs, expected, strict=True):
        if isinstance(wanted, list):
            why = difference(case, output, wanted)
        elif wanted is None or output is None:
            why = "" if wanted is output else "is absent, or should be"
        else:
            why = _array_difference(case, np.asarray(output), np.asarray(wanted))
        if why:
            return why
    return ""


def _array_difference(case: Case, output: np.ndarray, wanted: np.ndarray) -> str:
    if output.shape != wanted.shape:
        return f"shape {list(output.shape)}, expected {list(wanted.shape)}"
    if wanted.dtype.kind in "OUS" or output.dtype.kind in "OUS":
        return "" if np.array_equal(output.astype(str), wanted.astype(str)) else "other texts"
    numbers, right = output.astype(np.float64), wanted.astype(np.float64)
    # what is expected is rounded to its dtype; in networks of short floats after every operator,
    # between which gossamer computes in float32
    rounding = 0.0 if wanted.dtype.kind in "biu" else float(ml_dtypes.finfo(wanted.dtype).eps)
    rounding *= 2 if wanted.dtype.itemsize == 2 else 1
    if np.allclose(numbers, right, rtol=max(case.rtol, rounding), atol=case.atol, equal_nan=True):
        return ""
    return "other numbers"


def reason(message: str) -> str:
    """Return a message without names, shapes and numbers, so that equal reasons are counted
    together."""
    text = re.sub(r"^(<[^>]*>|ONNX model|ONNX bytes): ", "", message.splitlines()[0])
    text = re.sub(r"'[^']*'", "'...'", text)
    return re.sub(r"\[[^\]]*\]", "[...]", text)[:110]
