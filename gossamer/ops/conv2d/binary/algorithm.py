"""The base class of algorithms that compute a binary layer with bit operations."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.binary.layer import BinaryLayer
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec


class BinaryAlgorithm(Algorithm, abc.ABC):
    """An algorithm for binary layers.

    The layer is a convolution. Subclasses for other ops override layer_of() and weights_of().
    """

    op = "conv2d"
    exact = True

    def layer_of(self, problem: Any) -> BinaryLayer | str:
        """Return a problem as a binary layer, or the reason why this is impossible."""
        return BinaryLayer(problem)

    def weights_of(self, weights: Weights, problem: Any) -> Weights:
        """Return a problem's constants under their names in the layer's convolution."""
        return weights

    @abc.abstractmethod
    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        """Return why the algorithm cannot compute a layer; None if it can."""

    @abc.abstractmethod
    def variants_of(self, layer: BinaryLayer, inputs: Sequence[TensorSpec],
                    outputs: Sequence[TensorSpec], device: Device) -> Iterator[Variant]:
        """Yield the variants of a layer with the given logical inputs and outputs."""

    @abc.abstractmethod
    def state_of(self, weights: Weights, layer: BinaryLayer, problem: Any, variant: Variant,
                 device: Device) -> State:
        """Return the state of a layer, as prepare() does."""

    def layer_us(self, layer: BinaryLayer, variant: Variant, device: Device) -> float | None:
        """Return the estimated microseconds of a layer; None if there is no estimate."""
        return None

    def supports(self, problem: Any, device: Device) -> str | None:
        layer = self.layer_of(problem)
        return layer if isinstance(layer, str) else self.reason_not(layer, device)

    def variants(self, problem: Any, device: Device) -> Iterator[Variant]:
        return self.variants_of(self._layer(problem), problem.inputs, problem.outputs, device)

    def expected_us(self, problem: Any, variant: Variant, device: Device) -> float | None:
        return self.layer_us(self._layer(problem), variant, device)

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        return self.state_of(self.weights_of(weights, problem), self._layer(problem), problem,
                             variant, device)

    def _layer(self, problem: Any) -> BinaryLayer:
        layer = self.layer_of(problem)
        assert isinstance(layer, BinaryLayer)
        return layer
