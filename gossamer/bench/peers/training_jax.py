"""Training by JAX: a compiled scan over the samples, many networks by vmap."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np

# what JAX would take at its start, three quarters of a GPU's memory, the others need
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

from gossamer.bench.peers.peer import AbsentError, Alternative, ReadyContender
from gossamer.bench.training_work import RATE, EpochWork, TrainingRun, flat, ready
from gossamer.device.base import Device
from gossamer.device.registry import find

_UNROLLED = (1, 4)
"""Steps in the body of the loop."""

Layers = list[tuple[Any, Any]]


def alternatives(name: str, task: EpochWork, device: Device) -> list[Alternative]:
    """jax-scan-cpu or jax-scan-gpu. Raises AbsentError."""
    if name == "jax-scan-cpu":
        device, timer = jax.devices("cpu")[0], find("host")
    else:
        try:
            device, timer = jax.devices("cuda")[device.index], device
        except (RuntimeError, IndexError):
            raise AbsentError("this jax sees no GPU: pip install 'jax[cuda13]'") from None
    return [Alternative(f"unroll {unroll}", partial(_made, name, task, timer, device, unroll))
            for unroll in _UNROLLED]


def _made(name: str, task: EpochWork, timer: Device, device: Any, unroll: int) -> ReadyContender:
    x, targets = (jax.device_put(array, device) for array in (task.x, task.targets))
    alone = task.problem.networks == 1
    every = _updated if alone else jax.vmap(_updated, (0, None, None))

    @partial(jax.jit, donate_argnums=0)
    def train(networks: Layers, x: Any, targets: Any) -> Layers:
        def step(networks: Layers, sample: tuple[Any, Any]) -> tuple[Layers, None]:
            return every(networks, *sample), None

        return jax.lax.scan(step, networks, (x, targets), unroll=unroll)[0]

    def begin(samples: int) -> TrainingRun:
        # copies: what is given away may share the memory of what it was made of
        networks = jax.device_put([tuple(np.array(part[0] if alone else part) for part in layer)
                                   for layer in task.layers], device)
        own_x, own_targets = x[:samples], targets[:samples]

        def work(stream: Any) -> None:
            # our events are on another stream: the call ends with the work
            nonlocal networks
            networks = jax.block_until_ready(train(networks, own_x, own_targets))

        def parameters() -> np.ndarray:
            layers = [(np.asarray(weight), np.asarray(bias)) for weight, bias in networks]
            return flat([(weight[None], bias[None]) if alone else (weight, bias)
                         for weight, bias in layers])

        return TrainingRun(work, parameters)

    return ready(name, timer, task, begin, "row", f"jit of scan, unroll {unroll}")


def _updated(layers: Layers, x: Any, target: Any) -> Layers:
    gradients = jax.grad(_loss)(layers, x, target)
    return jax.tree.map(lambda part, change: part - RATE * change, layers, gradients)


def _loss(layers: Layers, x: Any, target: Any) -> Any:
    for weight, bias in layers:
        # strict float32, no TF32
        x = jax.nn.sigmoid(jnp.dot(weight, x, precision=jax.lax.Precision.HIGHEST) + bias)
    return 0.5 * jnp.sum((target - x) ** 2)
