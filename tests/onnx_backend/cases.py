"""The backend tests that the installed onnx brings, each as a model with inputs and outputs."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

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
