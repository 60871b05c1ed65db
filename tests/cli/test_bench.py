"""The verb `bench` for one network, as it is without the package of the suites."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from gossamer.bench.calls import BOUND, ONE_BY_ONE
from gossamer.bench.work import OWN
from tests.bench.verb import bench
from tests.cli.command_line import fails
from tests.cli.verb_uses import without_suites  # noqa: F401
from tests.model.onnx_models import model, save

pytestmark = pytest.mark.usefixtures("quick_calls")


def test_one_table_of_a_network(tiny: Path, device_name: str) -> None:
    result = bench(tiny, "--device", device_name, "--batch", "1,4", "--against",
                   "onnxruntime,torch-eager")
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{tiny} on {device_name} (")
    assert "p50, batch 1" in lines[1] and "images per second, batch 4" in lines[1]
    names = [line.split()[0] for line in lines[2:] if not line.startswith("absent")]
    torchs = [] if find_spec("torch") is None else ["torch-eager"]
    assert sorted(names) == sorted([OWN, BOUND, ONE_BY_ONE, "onnxruntime", *torchs])
    absent = [line for line in lines if line.startswith("absent: ")]
    assert len(absent) == 1 - len(torchs) and all("torch-eager" in line for line in absent)
    document = json.loads(bench(tiny, "--device", device_name, "--batch", "1,4", "--against",
                                "onnxruntime", "--json").stdout)
    by_name = {line["contender"]: line for line in document["contenders"]}
    assert set(by_name) == {OWN, BOUND, ONE_BY_ONE, "onnxruntime"}
    assert by_name[OWN]["p50_us"] <= by_name[OWN]["p99_us"] and by_name[OWN]["a_second"] > 0
    assert document["latency_batch"] == 1 and document["throughput_batch"] == 4


def test_a_network_that_runs_at_another_batch_size_only(tmp_path: Path) -> None:
    proto = model([helper.make_node("ReduceSum", ["x", "axes"], ["y"])], {"x": [2, 3, 4]},
                  {"y": 3}, {"axes": np.array([0])})
    assert "the file is written for batch 2 and does not run at 1" in fails(
        2, "bench", save(proto, tmp_path), "--device", "host")
