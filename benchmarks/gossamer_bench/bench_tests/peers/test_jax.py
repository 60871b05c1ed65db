"""JAX as a peer, and, without JAX, the table of its functions."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_tests.conftest import PEAKS, NvidiaDevice, setting
from bench_tests.networks import tiny
from gossamer.bench.networks import reference
from gossamer.bench.peers import calls
from gossamer.bench.rows import Stamp
from gossamer.bench.work import AbsentError, PeerNetwork
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.expression import FUNCTIONS
from gossamer_bench import contest, peers
from gossamer_bench.peers.inference import PEERS, defaults
from gossamer_bench.suites.networks import network_case
from tests.tolerances import normalised_error, tolerance


class OpenclDevice(HostDevice):
    """The host as a device that runs OpenCL."""

    name, api, compiles = "opencl:0", "opencl", True


@pytest.mark.slow
def test_it_has_a_row_beside_gossamers(needs_jax: None, tmp_path: Path) -> None:
    case = network_case("suite", tiny(), 3, setting(find("host"), tmp_path, ["jax-jit"]))
    result = contest.run(case, PEAKS, Stamp({}, "gossamer bench", None, "run"))
    assert not result.failed and not result.absent
    row = next(row for row in result.rows if row.contender == "jax-jit")
    assert (row.device, row.precision, row.config) == ("host", "fp32", "jit, batch norm folded")
    assert row.layout in ("NCHW", "NHWC") and 0 < row.error < tolerance("network")
    calls.release()


def test_calls_are_queued_on_a_gpu(needs_jax: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer_bench.peers import jax_devices, jax_networks

    waits = []

    def wait(results: list[Any]) -> list[Any]:
        waits.append(len(results))
        return results

    class Quick(NvidiaDevice):
        def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
            work(stream)
            return 4000.0

    monkeypatch.setattr(jax_devices, "gpu", lambda device: jax_devices.processor())
    monkeypatch.setattr(jax_networks.jax, "block_until_ready", wait)
    x = np.random.default_rng(5).standard_normal((2, 3, 8, 8), np.float32)
    first, *_ = PEERS["jax-jit"](tiny(), x, Quick(), ["tf32"])
    ready = first.make()
    assert (ready.runs, ready.precision) == (5, "tf32")
    assert ready.config == "jit, batch norm folded, 5 calls queued"
    waits.clear()
    ready.work(None)
    assert waits == [1]
    assert normalised_error(ready.output(2), reference(tiny().graph, x)) < tolerance("network")


def test_it_says_why_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((1, 3, 8, 8), np.float32)

    def reason(device: HostDevice, network: PeerNetwork, *precisions: str) -> str:
        with pytest.raises(AbsentError) as caught:
            PEERS["jax-jit"](network, x, device, precisions)
        return str(caught.value)

    layer = dataclasses.replace(tiny(), is_layer=True)
    assert reason(find("host"), layer, "fp32") == "whole networks are compared only"
    assert "does not run on opencl:0" in reason(OpenclDevice(), tiny(), "fp32")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert reason(find("host"), tiny(), "fp32") == (
        "jax is not installed: pip install jax, or 'jax[cuda13]' for GPUs")


def test_what_a_device_lacks_is_a_reason(needs_jax: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer_bench.peers import jax_devices

    def no_backend(platform: str) -> list[Any]:
        if platform == "cuda":
            raise RuntimeError("Unknown backend cuda")
        return devices(platform)

    devices = jax_devices.jax.devices
    monkeypatch.setattr(jax_devices.jax, "devices", no_backend)
    x = np.zeros((1, 3, 8, 8), np.float32)
    with pytest.raises(AbsentError, match=r"this jax sees no GPU: pip install 'jax\[cuda13\]'"):
        PEERS["jax-jit"](tiny(), x, NvidiaDevice(), ["fp32"])
    with pytest.raises(AbsentError, match="the processor has no TF32"):
        PEERS["jax-jit"](tiny(), x, find("host"), ["tf32"])


def test_whole_networks_are_compared_by_default() -> None:
    for device in (NvidiaDevice(), find("host")):
        assert "jax-jit" in defaults(device, False)
        assert "jax-jit" not in defaults(device, True)
    assert "jax-jit" not in defaults(OpenclDevice(), False)


def test_every_function_has_one_of_jax() -> None:
    tree = ast.parse(Path(peers.__path__[0], "expression_jax.py").read_text(encoding="utf-8"))
    (table,) = (node.value for node in tree.body if isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name) and node.target.id == "_FUNCTIONS")
    assert isinstance(table, ast.Dict)
    names = [key.value for key in table.keys if isinstance(key, ast.Constant)]
    assert sorted(names) == sorted(FUNCTIONS)
