"""Training by JAX: a compiled scan over the samples, with vmap over several networks."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer_bench.contender import Alternative, ReadyContender
from gossamer_bench.peers import jax_devices
from gossamer_bench.training_work import RATE, EpochWork, TrainingRun, flat, ready

_UNROLLED = (1, 4)
"""How many training steps the loop's body may hold; each of these numbers is tried."""

Layers = list[tuple[Any, Any]]
"""Weights and biases of each layer."""


def alternatives(name: str, task: EpochWork, device: Device) -> list[Alternative]:
    """Returns the ways to run jax-scan-cpu or jax-scan-gpu. Raises AbsentError."""
    if name == "jax-scan-cpu":
        jax_device, timer = jax_devices.processor(), find("host")
    else:
        jax_device, timer = jax_devices.gpu(device), device
    return [Alternative(f"unroll {unroll}",
                        partial(_contender, name, task, timer, jax_device, unroll))
            for unroll in _UNROLLED]


def _contender(name: str, task: EpochWork, timer: Device, jax_device: Any,
               unroll: int) -> ReadyContender:
    """Returns the contender with `unroll` steps in the loop's body, timed by `timer`."""
    x, targets = (jax.device_put(array, jax_device) for array in (task.x, task.targets))
    alone = task.problem.networks == 1
    update = _updated if alone else jax.vmap(_updated, (0, None, None))

    @partial(jax.jit, donate_argnums=0)
    def train(networks: Layers, x: Any, targets: Any) -> Layers:
        def step(networks: Layers, sample: tuple[Any, Any]) -> tuple[Layers, None]:
            return update(networks, *sample), None

        return jax.lax.scan(step, networks, (x, targets), unroll=unroll)[0]

    def begin(samples: int) -> TrainingRun:
        # copied, because JAX may share the memory of a NumPy array, and train() donates its
        # argument
        networks = jax.device_put([tuple(np.array(array[0] if alone else array) for array in layer)
                                   for layer in task.layers], jax_device)
        first_x, first_targets = x[:samples], targets[:samples]

        def work(stream: Any) -> None:
            # the call waits for the result, because gossamer's events are on another stream
            nonlocal networks
            networks = jax.block_until_ready(train(networks, first_x, first_targets))

        def parameters() -> np.ndarray:
            layers = [(np.asarray(weight), np.asarray(bias)) for weight, bias in networks]
            return flat([(weight[None], bias[None]) if alone else (weight, bias)
                         for weight, bias in layers])

        return TrainingRun(work, parameters)

    return ready(name, timer, task, begin, "row", f"jit of scan, unroll {unroll}")


def _updated(layers: Layers, x: Any, target: Any) -> Layers:
    """Returns one network after a step of gradient descent by one sample."""
    gradients = jax.grad(_loss)(layers, x, target)
    return jax.tree.map(lambda array, gradient: array - RATE * gradient, layers, gradients)


def _loss(layers: Layers, x: Any, target: Any) -> Any:
    """Returns half the squared error of one sample."""
    for weight, bias in layers:
        # strict float32, no TF32
        x = jax.nn.sigmoid(jnp.dot(weight, x, precision=jax.lax.Precision.HIGHEST) + bias)
    return 0.5 * jnp.sum((target - x) ** 2)
