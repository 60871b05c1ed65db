"""Who else trains: C on one core and on all, PyTorch, JAX."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import numpy as np

from gossamer.bench.peers import backprop_c
from gossamer.bench.peers.backprop_c import CNetworks, Lessons, PlainNetworks
from gossamer.bench.peers.peer import AbsentError, Alternative, ReadyContender
from gossamer.bench.training_work import RATE, EpochWork, TrainingRun, ready
from gossamer.device.base import Device
from gossamer.device.registry import find

TrainingPeer = Callable[[EpochWork, Device], list[Alternative]]
"""The alternatives on a device. Raises AbsentError."""

_LOOKS = 3
"""Samples that tell how many threads are the fastest."""


def _c(name: str, task: EpochWork, device: Device) -> list[Alternative]:
    backprop_c.library()
    return [Alternative("cc", partial(_made_in_c, name, task))]


def _made_in_c(name: str, task: EpochWork) -> ReadyContender:
    host, networks = find("host"), task.problem.networks
    kind, _, form = name.partition(":")
    lessons = Lessons(task.x, task.targets, RATE, form == "skip-zeros")

    def begin(threads: int, samples: int) -> TrainingRun:
        sizes = task.problem.sizes
        own = (PlainNetworks(sizes, task.start, lessons, threads,
                             together=kind == "c-openmp" and networks == 1) if form == "plain"
               else CNetworks(sizes, task.start, lessons, threads))
        return TrainingRun(lambda stream: own.train(samples), own.parameters)

    threads, told = 1, "one core"
    if kind == "c-openmp" and networks == 1:
        times = {each: _shortest(begin(each, task.checked), host) / task.checked
                 for each in _thread_counts(host.limits.compute_units)}
        threads = min(times, key=lambda each: times[each])
        told = (f"{threads} of {host.limits.compute_units} threads ("
                + ", ".join(f"{each}: {us:.2f}" for each, us in times.items()) + " us)")
    elif kind == "c-openmp":
        threads = min(host.limits.compute_units, networks)
        told = f"{threads} threads, a network each"
    return ready(name, host, task, partial(begin, threads),
                 "lists of nonzero inputs" if form == "skip-zeros" else "row",
                 f"{backprop_c.compiler()} {' '.join(backprop_c.OPTIONS)}, {told}")


def _thread_counts(most: int) -> list[int]:
    """Powers of two, and all."""
    return sorted({most, *(1 << power for power in range(most.bit_length()))})


def _shortest(run: TrainingRun, host: Device) -> float:
    return float(np.min([host.time(run.work) for _ in range(_LOOKS)]))


def _torch(name: str, task: EpochWork, device: Device) -> list[Alternative]:
    if importlib.util.find_spec("torch") is None:
        raise AbsentError("torch is not installed: pip install torch")
    from gossamer.bench.peers import training_torch

    return training_torch.alternatives(name, task, device)


def _jax(name: str, task: EpochWork, device: Device) -> list[Alternative]:
    if name == "jax-scan-gpu" and device.api != "cuda":
        raise AbsentError("compared on CUDA only")
    if importlib.util.find_spec("jax") is None:
        raise AbsentError("jax is not installed: pip install jax, or 'jax[cuda13]' for GPUs")
    from gossamer.bench.peers import training_jax

    return training_jax.alternatives(name, task, device)


_MAKERS: dict[str, Callable[[str, EpochWork, Device], list[Alternative]]] = {
    "c-one-core": _c, "c-one-core:plain": _c, "c-one-core:skip-zeros": _c,
    "c-openmp": _c, "c-openmp:plain": _c, "c-openmp:skip-zeros": _c,
    "torch-eager": _torch, "torch-graph": _torch,
    "jax-scan-cpu": _jax, "jax-scan-gpu": _jax,
}
TRAINING_PEERS: dict[str, TrainingPeer] = {name: partial(make, name)
                                           for name, make in _MAKERS.items()}


def defaults(api: str) -> list[str]:
    """The peers that are compared on a kind of device where none are named."""
    return [name for name in TRAINING_PEERS
            if api == "cuda" or name not in ("torch-graph", "jax-scan-gpu")]
