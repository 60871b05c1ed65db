import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from gossamer.cli import advise as verb
from gossamer.cli import prune as prune_verb
from tests.advise.test_advice import group, made
from tests.cli.command_line import fails, save_network, succeeds


@pytest.fixture
def network(tmp_path):
    return save_network(tmp_path / "net.onnx")


@pytest.fixture
def measured(monkeypatch):
    """Replaces the measurement by one that is known."""
    result = made(group("first", 108, 40, 20, 15, 10, 5), group("Gemm_y", 20, 40, 44, 42, 41, 40),
                  others=20)
    calls = []

    def advise(read, **options):
        calls.append(options)
        return result

    monkeypatch.setattr(verb, "advise", advise)
    monkeypatch.setattr(prune_verb, "advise", advise)
    return calls


def test_the_table_and_the_layers_to_prune(network, measured):
    lines = succeeds("advise", network, "--speed-up", "1.2", "--batch", "4", "--device",
                     "host").stdout.splitlines()
    assert measured == [{"device": "host", "batch": 4, "precision": "fp32", "effort": "quick",
                         "note": measured[0]["note"]}]
    assert lines[1].split() == ["layer", "weights", "as", "it", "is,", "us", "80%", "90%", "95%",
                                "98%"]
    assert lines[2].split() == ["first", "108", "40.0", "20.0", "15.0", "10.0", "5.0"]
    assert lines[6].split() == ["times", "as", "fast", "1.19", "1.30", "1.41", "1.54"]
    assert "layers to prune for about 1.25 times the speed, with few zeros:" in lines
    assert lines[-2].split() == ["first", "80%"]
    assert lines[-1].startswith(f"gossamer prune {network} --speed-up 1.2 ")


def test_as_json(network, measured):
    document = json.loads(succeeds("advise", network, "--json", "--speed-up", "9").stdout)
    assert document["network_us"]["as it is"] == 100
    assert document["groups"][0]["pruned"] == ["first"]
    assert document["choice"] == {"sparsities": {"first": 0.98}, "speed_up": 100 / 65,
                                  "reached": False}


def test_a_chart(network, measured, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "speed.png"
    assert f"written: {path}" in succeeds("advise", network, "--plot", path).stdout
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_network_pruned_for_a_speed_up(network, measured, tmp_path):
    target = tmp_path / "thin.onnx"
    result = succeeds("prune", network, "--speed-up", "1.2", "-o", target)
    assert "expected to bring" not in result.stderr
    arrays = {tensor.name: numpy_helper.to_array(tensor)
              for tensor in onnx.load(target).graph.initializer}
    assert np.count_nonzero(arrays["w"] == 0) == round(0.8 * 108)
    assert np.count_nonzero(arrays["v"] == 0) == 0
    result = succeeds("prune", network, "--speed-up", "9", "-o", target)
    assert "--speed-up 9: zeros are expected to bring 1.54 times the speed at most" in result.stderr


@pytest.mark.parametrize("verb", [("advise",), ("prune", "--speed-up", "2", "-o", "thin.onnx")])
def test_a_network_that_is_refused_is_named_once(verb, tmp_path):
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    for shape, message in ((("N", 3), "has no weights that can"), (("N", "L"), "leaves dimension")):
        path = save_network(tmp_path / "net.onnx", nodes=relu, weights={}, inputs=shape,
                            outputs=(("y", shape),))
        line = fails(2, *verb, path, "--device", "host")
        assert message in line and line.count("net.onnx: ") == 1 and "ONNX model" not in line


def test_a_layer_to_prune_that_is_kept(network, measured, tmp_path):
    assert "no layer of " in fails(2, "prune", network, "--speed-up", "2", "--keep", "first", "-o",
                                   tmp_path / "thin.onnx")
