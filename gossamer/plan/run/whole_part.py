"""Executes a program that ONNX Runtime computes as one part. ONNX Runtime reads the caller's arrays
without copies, because copies would take a large share of a small network's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.ops.part.host import Ready
from gossamer.plan.part import source_of
from gossamer.plan.program import Program


class WholePart:
    """ONNX Runtime's session for a program that is one part."""

    def __init__(self, program: Program, ready: Ready) -> None:
        (step,) = program.steps
        self._run = ready.session.run
        self._layer = step.layer
        given = list(program.inputs.values())
        self._order = [given.index(value) for value in step.inputs]
        self._dtypes = [program.specs[value].stored_dtype for value in step.inputs]
        self._outputs = [step.outputs.index(value) for value in program.outputs.values()]

    @staticmethod
    def of(program: Program, device: Device, data: Sequence[Any]) -> WholePart | None:
        """Returns the session of a program that is one part on the host; None for another program,
        and where the part reads other values than the program's inputs or does not write all its
        outputs. data: the `data` of each step's state."""
        if device.compiles or len(data) != 1 or not isinstance(data[0], Ready):
            return None
        (step,) = program.steps
        fits = set(step.inputs) <= set(program.inputs.values()) and (
            set(program.outputs.values()) <= set(step.outputs))
        return WholePart(program, data[0]) if fits else None

    def __call__(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Returns new outputs for the program's inputs, both in the program's order. Raises
        InputError where ONNX Runtime cannot compute them."""
        try:
            results = self._run([
                np.asarray(arrays[index], dtype, order="C")
                for index, dtype in zip(self._order, self._dtypes, strict=True)])
        except InputError as error:
            raise InputError(f"{source_of(self._layer, error)}: {error}") from None
        return tuple([results[index] for index in self._outputs])
