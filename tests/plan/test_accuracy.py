from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

import gossamer
from gossamer.errors import InputError
from gossamer.model.graph import Graph
from gossamer.plan.accuracy import Calibration, normalised_error, reference
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
