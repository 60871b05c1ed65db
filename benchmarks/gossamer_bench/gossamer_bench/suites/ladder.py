"""Makes the case of the published ladder: MobileNetV2, computed by the ladder's six programs and by
gossamer's plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from gossamer.bench.networks import input_of
from gossamer.bench.work import MOST_ERROR, AbsentError, PeerNetwork, Setting
from gossamer.device.base import Device
from gossamer.model.infer.resolve import resolve
from gossamer_bench.contender import Alternative, ReadyContender
from gossamer_bench.ladder.network import BlockSizes, PublishedNetwork
from gossamer_bench.ladder.rungs import SUITE, Rung
from gossamer_bench.suites.networks import network_case
from gossamer_bench.work import Case

DTYPES = {"fp64": "float64", "fp32": "float32"}
"""The precisions in which each rung is computed, with their dtypes: double precision as published,
and float32."""


def ladder_case(network: PeerNetwork, batch: int, setting: Setting) -> Case:
    """Makes the case of a network. Its contenders are every rung of the ladder in every precision
    of DTYPES, gossamer's plan in the precisions of the setting, and the peers that the setting
    names.

    Kernels of the rungs are launched one by one, as published. Block sizes are measured once for
    all rungs that tune them.
    """
    device = setting.device
    x = input_of(network, batch)
    case = network_case(SUITE, network, batch, setting, x=x)
    blocks: BlockSizes = {}
    contenders: dict[str, Callable[[], list[Alternative]]] = {
        rung.contender: partial(_alternatives, network, x, rung, device, blocks) for rung in Rung}
    return replace(case, contenders={**contenders, **case.contenders},
                   most_error={**case.most_error, "fp64": MOST_ERROR["fp64"]})


def _alternatives(network: PeerNetwork, x: np.ndarray, rung: Rung, device: Device,
                  blocks: BlockSizes) -> list[Alternative]:
    """Returns a rung in every precision. Raises AbsentError where the device compiles no
    kernels."""
    if not device.compiles:
        raise AbsentError(f"{device.name} compiles no kernels")
    return [Alternative(precision, partial(_ready, network, x, rung, precision, device, blocks))
            for precision in DTYPES]


def _ready(network: PeerNetwork, x: np.ndarray, rung: Rung, precision: str, device: Device,
           blocks: BlockSizes) -> ReadyContender:
    """Returns a rung in a precision. Raises AbsentError where the device does not compute in this
    precision."""
    if precision == "fp64" and not device.limits.float64:
        raise AbsentError(f"{device.name} does not compute in double precision")
    published = PublishedNetwork(resolve(network.graph, len(x)), x, rung, DTYPES[precision], device,
                                 blocks)

    def output(count: int) -> np.ndarray:
        return published.output()[:count]

    least, most = published.block_sizes
    sizes = str(least) if least == most else f"{least} to {most}"
    return ReadyContender(rung.contender, device, published.run, output, "NCHW",
                          f"{rung.label}; {published.kernels} kernels, work-groups of {sizes}",
                          precision)
