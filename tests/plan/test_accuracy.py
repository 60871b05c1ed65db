from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.device.base import Buffer, Device
from gossamer.errors import InputError
from gossamer.model.graph import Graph
from gossamer.ops import OPS
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.plan.accuracy import Calibration, normalised_error, reference
from gossamer.plan.plan import Plan
from gossamer.plan.tuner import Trial
from tests.model.onnx_models import save
from tests.plan.small import expected, images, small
from tests.tolerances import tolerance


@pytest.fixture
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return gossamer.load(str(save(small(), tmp_path_factory.mktemp("model"))))


def test_the_reference_is_the_network(graph: Graph) -> None:
    x = images(3)
    y = reference(graph, {"x": x})["y"]
    assert y.dtype == np.float64
    assert normalised_error(expected(x), y) <= tolerance("network")


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8])
def test_every_image_counts_at_every_batch_size(graph: Graph, batch: int) -> None:
    x = images(5)
    seen: list[int] = []

    def run(inputs: dict[str, np.ndarray], wrong: int = -1) -> dict[str, np.ndarray]:
        assert len(inputs["x"]) == batch
        y = reference(graph, inputs)["y"]
        for place, image in enumerate(inputs["x"]):
            (index,) = np.flatnonzero((x == image).all(axis=(1, 2, 3)))
            seen.append(int(index))
            if index == wrong:
                y[place] *= 1.25
        return {"y": y}

    calibration = Calibration(graph, [x])
    assert calibration.error(run, batch) < 1e-12
    assert set(seen) == set(range(5))
    for wrong in range(5):
        assert calibration.error(lambda inputs, w=wrong: run(inputs, w), batch) == (
            pytest.approx(0.25))


@dataclass
class _Variant:
    precision: str


@dataclass
class _Program:
    """Layers in lower precision cost 1 us instead of 1 + saved, and each adds to the error."""

    steps: list[SimpleNamespace] = field(default_factory=list)


_LAYERS = {"a": (5.0, 3e-4), "b": (1.0, 1e-4), "c": (9.0, 2e-4), "d": (3.0, 4e-4)}
"""Time that the lower precision saves, and the error that it adds."""


def _chosen(allowed: frozenset[str] | None) -> _Program:
    program = _Program()
    for name, (saved, _) in _LAYERS.items():
        low = allowed is None or name in allowed
        half, full = _Variant("fp16"), _Variant("fp32")
        trials = [SimpleNamespace(variant=full, cost=1 + saved),
                  SimpleNamespace(variant=half, cost=1.0)]
        program.steps.append(SimpleNamespace(
            layer=SimpleNamespace(name=name, inserted=False), variant=half if low else full,
            trials=trials))
    return program


def _error(program: _Program) -> float:
    return 1e-7 + sum(_LAYERS[step.layer.name][1] for step in program.steps
                      if step.variant.precision == "fp16")


@pytest.mark.parametrize(("allowed", "kept"), [
    (None, "abcd"), (2e-3, "abcd"), (9.5e-4, "acd"), (6e-4, "ac"), (2.5e-4, "c"), (1e-4, ""),
    (1e-8, ""),
])
def test_layers_that_save_most_keep_their_precision(graph: Graph, allowed: float | None,
                                                    kept: str) -> None:
    calibration = Calibration(graph, [images(2)], allowed)
    program, accuracy = calibration.choose(_chosen, _error)  # type: ignore[arg-type]
    assert "".join(accuracy.less_precise) == kept
    assert set(accuracy.held_back) == set("abcd") - set(kept)
    assert accuracy.error == _error(program)  # type: ignore[arg-type]
    met = allowed is None or accuracy.error <= allowed
    assert met == ("cannot be met" not in str(accuracy))
    assert met == (allowed != 1e-8)


def test_bad_calibrations_are_refused(graph: Graph) -> None:
    with pytest.raises(InputError, match=r"input 'x' has shape 2x3x6x4, expected Nx3x6x5"):
        Calibration(graph, [images(2)[..., :4]])
    with pytest.raises(InputError, match="hold no image"):
        Calibration(graph, [images(0)])
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="expected a normalised error above 0"):
            Calibration(graph, [images(1)], wrong)


class _Rounding(HostIm2col):
    """Rounds its inputs to 16 bits, and says so: what lower precision there is on the host."""

    name = "rounding"

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterable[Variant]:
        return [replace(next(iter(super().variants(problem, device))), precision="tf32")]

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        rounded = [state.device.upload(
            np.frombuffer(buffer.bytes, np.float32).astype(np.float16).astype(np.float32), "test")
            for buffer in inputs]  # type: ignore[attr-defined]
        super().launch(state, rounded, outputs, workspace, stream)


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An algorithm of lower precision that measures a hundred times faster than all others."""
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    op = OPS["conv2d"]
    monkeypatch.setitem(OPS, "conv2d", replace(op, algorithms=(*op.algorithms, _Rounding())))
    cost = Trial.cost.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Trial, "cost", property(
        lambda trial: cost(trial) / (100 if trial.variant.precision == "tf32" else 1)))
    monkeypatch.setattr("gossamer.plan.plan.compare", lambda *args: None)


@pytest.mark.usefixtures("rounding")
def test_lower_precision_is_taken_within_the_tolerance_only(graph: Graph) -> None:
    x = images(4)

    def compiled(tolerance: float | None, precision: str = "tf32") -> Plan:
        plan = gossamer.compile(graph, "host", effort="quick", precision=precision,
                                calibration=x, tolerance=tolerance)
        plan(x)
        return plan

    free = compiled(None)
    accuracy = free.report(4).accuracy
    assert accuracy is not None and len(accuracy.less_precise) == 2
    assert 1e-5 < accuracy.error < 1e-3
    assert accuracy.error == pytest.approx(
        normalised_error(free(x), reference(graph, {"x": x})["y"]), rel=1e-6)
    strict = compiled(1e-5).report(4)
    assert strict.accuracy is not None and strict.accuracy.error < 1e-5
    assert not strict.accuracy.less_precise and len(strict.accuracy.held_back) == 2
    held = [row for row in strict.rows if row["layer"] in strict.accuracy.held_back]
    assert all("the tolerance asks for" in row["rejected"]["rounding"] for row in held)
    assert str(strict.accuracy) in strict.notes
    fp32 = compiled(None, "fp32").report(4).accuracy
    assert fp32 is not None and not fp32.less_precise and fp32.error < 1e-5


def test_a_tolerance_needs_calibration(graph: Graph) -> None:
    with pytest.raises(InputError, match="give calibration"):
        gossamer.compile(graph, "host", tolerance=1e-3)
    with pytest.raises(InputError, match="goes with an effort"):
        gossamer.compile(graph, "host", precision="fp16")
