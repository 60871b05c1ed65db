"""Measures the time that planning takes: from a network in memory to the end of its first run, with
empty caches."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import numpy as np

from gossamer.bench.networks import CHECKED_IMAGES, input_of
from gossamer.bench.work import OWN, AbsentError, PeerNetwork, Setting
from gossamer.device.registry import find
from gossamer.measure import Timing
from gossamer.plan.plan import Plan
from gossamer_bench.contender import Alternative, TimedContender, check_cuda_or_processor
from gossamer_bench.fresh_process import Job, run
from gossamer_bench.suites.networks import timed_network
from gossamer_bench.work import Case

SUITE = "tuning"
EFFORTS = ("quick", "normal")
"""The efforts that are measured where the user names no effort."""
PEERS = ("torch-compile",)
"""The peers that are measured."""


def tuning_case(network: PeerNetwork, effort: str, batch: int, setting: Setting) -> Case:
    """Makes the case of a network that is planned with an effort for one batch size.

    Each contender runs once for each precision, in a fresh process; the row has the time of this
    run. gossamer chooses the fastest candidate of every layer, in this precision or in a more
    precise one.
    """
    graph, device = network.graph, setting.device
    x = input_of(network, batch)

    def alternatives(contender: str) -> list[Alternative]:
        if contender != OWN:
            _check_torch(setting)
        return [Alternative(precision, partial(_timed, Job(
            contender, graph, x, CHECKED_IMAGES, device.name, precision, effort), setting))
            for precision in setting.precisions]

    contenders: dict[str, Callable[[], list[Alternative]]] = {
        name: partial(alternatives, name) for name in (OWN, *setting.against)}
    return timed_network(SUITE, f"{network.name}/{effort}", graph, x,
                         Plan(graph, device).layers(batch), contenders)


def _check_torch(setting: Setting) -> None:
    """Raises AbsentError where PyTorch is not installed or does not run on the device."""
    check_cuda_or_processor(setting.device)
    if importlib.util.find_spec("torch") is None:
        raise AbsentError("torch is not installed: pip install torch")


def _timed(job: Job, setting: Setting) -> TimedContender:
    """Does a job in a fresh process. Raises AbsentError, or RuntimeError where the process
    fails."""
    first = run(job)
    median_us = 1e6 * first.seconds

    def output(count: int) -> np.ndarray:
        return first.output[:count]

    on_device = job.contender == OWN or setting.device.runs_cuda_libraries
    return TimedContender(
        job.contender, setting.device if on_device else find("host"),
        Timing(median_us, median_us, median_us, 1), output, first.layout, first.config,
        job.precision)
