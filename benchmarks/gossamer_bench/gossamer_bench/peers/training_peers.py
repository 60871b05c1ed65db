"""The peers of training: C on one core, C on all cores, PyTorch and JAX."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import numpy as np

from gossamer.bench.work import AbsentError
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer_bench.contender import Alternative, ReadyContender
from gossamer_bench.peers import backprop_c, c_code
from gossamer_bench.peers.backprop_c import CNetworks, Lessons, PlainNetworks
from gossamer_bench.training_work import RATE, EpochWork, TrainingRun, ready

TrainingPeer = Callable[[EpochWork, Device], list[Alternative]]
"""Function that returns the alternatives for a task on a device. Raises AbsentError."""

_LOOKS = 3
"""Number of measurements for each number of threads; the shortest time counts."""


def _c(name: str, task: EpochWork, device: Device) -> list[Alternative]:
    """Returns the way to run a peer in C. Raises AbsentError where the program cannot be built."""
    backprop_c.library()
    return [Alternative("cc", partial(_c_contender, name, task))]


def _c_contender(name: str, task: EpochWork) -> ReadyContender:
    """Returns the program in C with the fastest number of threads. The part of the name after the
    colon selects the program: with plain loops, with lists of nonzero inputs, or by default with
    vectors."""
    host, networks = find("host"), task.problem.networks
    kind, _, form = name.partition(":")
    lessons = Lessons(task.x, task.targets, RATE, form == "skip-zeros")

    def begin(threads: int, samples: int) -> TrainingRun:
        sizes = task.problem.sizes
        trained = (PlainNetworks(sizes, task.start, lessons, threads,
                                 together=kind == "c-openmp" and networks == 1)
                   if form == "plain" else CNetworks(sizes, task.start, lessons, threads))
        return TrainingRun(lambda stream: trained.train(samples), trained.parameters)

    threads, threads_text = 1, "one core"
    if kind == "c-openmp" and networks == 1:
        times = {count: _shortest(begin(count, task.checked), host) / task.checked
                 for count in _thread_counts(host.limits.compute_units)}
        threads = min(times, key=lambda count: times[count])
        threads_text = (f"{threads} of {host.limits.compute_units} threads ("
                        + ", ".join(f"{count}: {us:.2f}" for count, us in times.items()) + " us)")
    elif kind == "c-openmp":
        threads = min(host.limits.compute_units, networks)
        threads_text = f"{threads} threads, a network each"
    return ready(name, host, task, partial(begin, threads),
                 "lists of nonzero inputs" if form == "skip-zeros" else "row",
                 f"{c_code.compiler()} {' '.join(c_code.OPTIONS)}, {threads_text}")


def _thread_counts(most: int) -> list[int]:
    """Returns the numbers of threads that are tried: powers of two, and `most`."""
    return sorted({most, *(1 << power for power in range(most.bit_length()))})


def _shortest(run: TrainingRun, host: Device) -> float:
    """Runs the training several times, and returns the shortest time in microseconds."""
    return float(np.min([host.time(run.work) for _ in range(_LOOKS)]))


def _torch(name: str, task: EpochWork, device: Device) -> list[Alternative]:
    """Returns the ways to run a peer that trains with PyTorch. PyTorch is imported when a peer
    first needs it."""
    if importlib.util.find_spec("torch") is None:
        raise AbsentError("torch is not installed: pip install torch")
    from gossamer_bench.peers import training_torch

    return training_torch.alternatives(name, task, device)


def _jax(name: str, task: EpochWork, device: Device) -> list[Alternative]:
    """Returns the ways to run a peer that trains with JAX. JAX is imported when a peer first needs
    it."""
    if name == "jax-scan-gpu" and not device.runs_cuda_libraries:
        raise AbsentError("compared on CUDA only")
    if importlib.util.find_spec("jax") is None:
        raise AbsentError("jax is not installed: pip install jax, or 'jax[cuda13]' for GPUs")
    from gossamer_bench.peers import training_jax

    return training_jax.alternatives(name, task, device)


_MAKERS: dict[str, Callable[[str, EpochWork, Device], list[Alternative]]] = {
    "c-one-core": _c, "c-one-core:plain": _c, "c-one-core:skip-zeros": _c,
    "c-openmp": _c, "c-openmp:plain": _c, "c-openmp:skip-zeros": _c,
    "torch-eager": _torch, "torch-graph": _torch,
    "jax-scan-cpu": _jax, "jax-scan-gpu": _jax,
}
TRAINING_PEERS: dict[str, TrainingPeer] = {name: partial(make, name)
                                           for name, make in _MAKERS.items()}


def defaults(device: Device) -> list[str]:
    """Returns the peers that take part on a device where the user names no peers."""
    return [name for name in TRAINING_PEERS
            if device.runs_cuda_libraries or name not in ("torch-graph", "jax-scan-gpu")]
