"""The backend tests that the installed onnx brings, and what becomes of them.

Each is a model with inputs and outputs, run with gossamer or with ONNX Runtime.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import gossamer
from gossamer.errors import GossamerError

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""The kinds of tests that need no download."""


@dataclass(frozen=True)
class Case:
    """A model with sets of inputs and the outputs that ONNX expects for each.

    rtol, atol: how far an output may be off, relative to its value and absolute.
    """

    name: str
    model: onnx.ModelProto
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float

    @property
    def operators(self) -> list[str]:
        """The operators of the model's own graph, each once, in order."""
        return list(dict.fromkeys(node.op_type for node in self.model.graph.node))

    def as_initializers(self) -> Case | None:
        """Return the case with each input but the first, where it is a tensor, as a constant of the
        model; None where that changes nothing."""
        inputs = self.model.graph.input
        constants = [info for info in list(inputs)[1:] if info.type.HasField("tensor_type")]
        given = self.data_sets[0][0] if len(self.data_sets) == 1 else []
        if not constants or len(given) != len(inputs) or not isinstance(given[0], np.ndarray):
            return None
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        values = dict(zip((info.name for info in inputs), given, strict=True))
        for info in constants:
            value = values.pop(info.name)
            if not isinstance(value, np.ndarray):
                return None
            model.graph.initializer.append(numpy_helper.from_array(value, info.name))
        kept = [info for info in inputs if info.name in values]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        return Case(self.name, model, [(list(values.values()), self.data_sets[0][1])],
                    self.rtol, self.atol)


@functools.cache
def cases() -> list[Case]:
    """Return all tests that need no download, in the order of their names."""
    found = []
    with warnings.catch_warnings():
        # the tests' own arithmetic overflows on purpose
        warnings.simplefilter("ignore")
        for kind in KINDS:
            for test in load_model_tests(kind=kind):
                model, data_sets = test.model, test.data_sets
                if model is None:
                    folder = Path(test.model_dir)
                    model = onnx.load(folder / "model.onnx")
                    data_sets = [_data_set(model, part)
                                 for part in sorted(folder.glob("test_data_set_*"))]
                data_sets = [(_arrays(inputs), _arrays(outputs)) for inputs, outputs in data_sets]
                found.append(Case(test.name, model, data_sets, test.rtol, test.atol))
    return sorted(found, key=lambda case: case.name)


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Return the values of a data set, some of which are tensors of ONNX, as arrays."""
    return [numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
            for value in values]


def _data_set(model: onnx.ModelProto, folder: Path) -> tuple[list[Any], list[Any]]:
    """Return the inputs and outputs that lie in a folder."""
    return (_values(folder, "input", model.graph.input),
            _values(folder, "output", model.graph.output))


def _values(folder: Path, what: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    values = []
    for index, _ in enumerate(infos):
        file = folder / f"{what}_{index}.pb"
        if file.exists():
            values.append(numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())))
    return values


PASSED = "passed"


def by_gossamer(case: Case, device: str = "host") -> str:
    """Return PASSED, or why gossamer does not pass a case on a device."""
    try:
        with warnings.catch_warnings(action="ignore"):
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
