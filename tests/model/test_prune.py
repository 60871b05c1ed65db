from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import InputError, ModelError
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.model.prune import PrunedLayer, check_sparsity, prune
from tests.model.onnx_models import model, part, weights


def network(**constants: np.ndarray) -> onnx.ModelProto:
    """Returns a network of two convolutions (the first unnamed), a depthwise one between them, and
    a classifier."""
    arrays = {"w1": weights(8, 3, 3, 3), "b1": weights(8), "dw": weights(8, 1, 3, 3, seed=8),
              "w2": weights(10, 8, 1, 1, seed=9), "v": weights(10, 5, seed=10), "c": weights(5),
              **constants}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "dw"], ["d"], name="thin", group=8),
        helper.make_node("Conv", ["d", "w2"], ["e"], name="point"),
        helper.make_node("GlobalAveragePool", ["e"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "c"], ["y"], name="classes"),
    ]
    return model(nodes, {"x": ["N", 3, 8, 8]}, {"y": 2}, arrays)


def arrays_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def by_name(layers: list[PrunedLayer]) -> dict[str, PrunedLayer]:
    return {layer.name: layer for layer in layers}


def pruned(proto: onnx.ModelProto, *arguments: Any, **options: Any) -> tuple[
        dict[str, np.ndarray], dict[str, PrunedLayer], dict[str, np.ndarray]]:
    """Returns the weights of a network, its layers by their names, and the pruned weights."""
    before = arrays_of(proto)
    layers = by_name(prune(proto, *arguments, **options))
    return before, layers, arrays_of(proto)


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.5, 0.9, 0.985])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_exactly_the_smallest_weights_go(sparsity: float, scope: str) -> None:
    before, layers, after = pruned(network(), sparsity, scope=scope)
    changed = ["w1", "w2", "v"]
    groups = [changed] if scope == "global" else [[name] for name in changed]
    for names in groups:
        old, new = (np.concatenate([arrays[name].reshape(-1) for name in names])
                    for arrays in (before, after))
        zero = new == 0
        assert zero.sum() == round(sparsity * zero.size)
        np.testing.assert_array_equal(new[~zero], old[~zero])
        if zero.any():
            assert np.abs(old[zero]).max() < np.abs(old[~zero]).min()
    for name in set(before) - set(changed):
        np.testing.assert_array_equal(after[name], before[name])
    assert {name: layer.after for name, layer in layers.items()} == {
        name: np.count_nonzero(after[layer.weight]) for name, layer in layers.items()}
    assert layers["point"].before == 80 and layers["point"].shape == (10, 8, 1, 1)


def test_only_the_pruned_tensors_change() -> None:
    proto, original = network(), network()
    prune(proto, 0.7)
    for name in ("w1", "w2", "v"):
        for pruned_or_not in (proto, original):
            tensor = next(t for t in pruned_or_not.graph.initializer if t.name == name)
            tensor.raw_data = b""
    assert proto.SerializeToString(deterministic=True) == original.SerializeToString(
        deterministic=True)


def test_order_names_and_depthwise() -> None:
    layers = prune(network(), 0.5)
    assert [layer.name for layer in layers] == ["Conv_a", "thin", "point", "classes"]
    assert [layer.kept for layer in layers] == ["", "depthwise", "", ""]
    assert layers[1].after == layers[1].before == 72
    layers = prune(network(), 0.5, depthwise=True, scope="layer")
    assert layers[1].kept == "" and layers[1].after == 36


def test_ties_go_in_the_order_of_the_file() -> None:
    ones = {"w1": np.ones((8, 3, 3, 3), np.float32), "w2": -np.ones((10, 8, 1, 1), np.float32),
            "v": np.ones((10, 5), np.float32)}
    _, _, after = pruned(network(**ones), 0.75)  # 259.5 of 346: 216 of the first, then 44
    assert (after["w1"] == 0).all() and (after["v"] == 1).all()
    np.testing.assert_array_equal(np.flatnonzero(after["w2"]), np.arange(44, 80))


def test_named_layers_have_shares_of_their_own() -> None:
    proto = network()
    layers = by_name(prune(proto, 0.5, {"point": 0.25, "v": 0.0, "thin": 1 / 9}))
    assert layers["point"].after == 60 and layers["classes"].after == 50
    assert layers["thin"].after == 64, "named, so pruned although it is depthwise"
    assert layers["Conv_a"].after == 108, "the only one that shares what --sparsity says"


def test_layers_that_are_not_named_stay() -> None:
    # one weight always stays
    assert by_name(prune(network(), None, {"classes": 0.995}))["classes"].after == 1
    layers = by_name(prune(network(), None, {"classes": 0.9}))
    assert layers["classes"].after == 5 and layers["classes"].kept == ""
    assert layers["Conv_a"].kept == layers["point"].kept == "not named"
    assert layers["thin"].kept == "depthwise"


def test_zeros_that_are_there_count_and_stay() -> None:
    w2 = weights(10, 8, 1, 1)
    w2.reshape(-1)[:60] = 0
    w2[0, 0] = -0.0
    proto = network(w2=w2)
    layers = by_name(prune(proto, None, {"point": 0.5}))
    assert layers["point"].before == layers["point"].after == 20
    assert arrays_of(proto)["w2"].tobytes() == w2.tobytes()
    assert by_name(prune(proto, None, {"point": 0.8}))["point"].after == 16


def test_nan_and_infinity_stay_longest() -> None:
    v = weights(10, 5)
    v[3, 1], v[4, 4] = np.nan, -np.inf
    proto = network(v=v)
    assert by_name(prune(proto, None, {"classes": 0.96}))["classes"].after == 2
    after = arrays_of(proto)["v"]
    assert np.isnan(after[3, 1]) and after[4, 4] == -np.inf
    proto = network(v=np.full((10, 5), np.nan, np.float32))
    assert by_name(prune(proto, None, {"classes": 0.5}))["classes"].after == 25


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("raw", [True, False])
def test_every_type_and_storage(kind: str, raw: bool) -> None:
    code = TensorProto.DataType.Value(kind)
    values = np.linspace(-1, 1, 80).astype(np.float32)  # 80 magnitudes, each twice
    proto = network()
    index = next(i for i, t in enumerate(proto.graph.initializer) if t.name == "w2")
    typed = helper.make_tensor("w2", code, [10, 8, 1, 1], values.tolist())
    stored = numpy_helper.from_array(numpy_helper.to_array(typed), "w2") if raw else typed
    assert stored.data_type == code and stored.HasField("raw_data") == raw
    proto.graph.initializer[index].CopyFrom(stored)
    old = numpy_helper.to_array(stored).astype(np.float64)
    prune(proto, None, {"point": 0.5})
    tensor = proto.graph.initializer[index]
    new = numpy_helper.to_array(tensor).astype(np.float64)
    assert tensor.data_type == code and tensor.HasField("raw_data") == raw
    assert (new == 0).sum() == 40
    np.testing.assert_array_equal(new.reshape(-1)[[0, 79]], old.reshape(-1)[[0, 79]])
    assert (np.abs(old[new == 0]) <= np.abs(old[new != 0]).min()).all()


def test_constant_nodes_and_what_stands_between() -> None:
    """The weights of a Constant node are transposed and cast on the way to a MatMul."""
    values = weights(5, 10)
    nodes = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(values)),
        helper.make_node("Transpose", ["k"], ["t"], perm=[1, 0]),
        helper.make_node("Cast", ["t"], ["u"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "u"], ["y"], name="product"),
        helper.make_node("MatMul", ["y", "y"], ["z"], name="of values"),
    ]
    proto = model(nodes, {"x": ["N", 10]}, {"z": 2})
    (layer,) = prune(proto, 0.5)
    assert (layer.name, layer.op, layer.weight, layer.after) == ("product", "MatMul", "k", 25)
    after = numpy_helper.to_array(proto.graph.node[0].attribute[0].t)
    assert np.count_nonzero(after) == 25 and not proto.graph.node[0].attribute[0].t.name


def test_weights_that_others_read_are_kept() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["g"], name="embed"),
        helper.make_node("Transpose", ["table"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["g", "t"], ["y"], name="tied"),
        helper.make_node("MatMul", ["y", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="second"),
    ]
    proto = model(nodes, {"x": ["N"]}, {"b": 2},
                  {"table": weights(6, 4), "w": weights(6, 6)}, types={"x": TensorProto.INT64})
    layers = by_name(prune(proto, 0.5))
    assert layers["tied"].kept == "Gather 'embed' reads its weights too"
    assert layers["first"].after == 18
    assert layers["second"].kept == "has the weights of 'first'"
    with pytest.raises(InputError, match=r"'tied' cannot be pruned: Gather 'embed'"):
        prune(proto, None, {"tied": 0.5})


def test_weights_that_a_branch_or_an_output_tells_are_kept() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "shown"], ["a"], name="branched"),
        helper.make_node("MatMul", ["a", "told"], ["b"], name="output"),
        helper.make_node("MatMul", ["b", "w"], ["y"], name="free"),
        helper.make_node("If", ["c"], ["z"], name="choice", then_branch=part(
            [helper.make_node("Add", ["shown", "shown"], ["t"])], [], ["t"]), else_branch=part(
                [helper.make_node("Neg", ["shown"], ["t"])], [], ["t"])),
        helper.make_node("Identity", ["told"], ["u"]),
    ]
    proto = model(nodes, {"x": ["N", 4], "c": []}, {"y": 2, "z": 2, "u": 2},
                  {"shown": weights(4, 4), "told": weights(4, 4), "w": weights(4, 4)},
                  types={"c": TensorProto.BOOL})
    layers = by_name(prune(proto, 0.5))
    assert layers["branched"].kept == "If 'choice' reads its weights too"
    assert layers["output"].kept == "output 'u' of the network returns its weights too"
    assert not layers["free"].kept and layers["free"].after == 8


def test_a_damaged_file_that_goes_round_in_a_circle() -> None:
    nodes = [helper.make_node("Identity", ["b"], ["a"]), helper.make_node("Identity", ["a"], ["b"]),
             helper.make_node("Identity", ["w"], ["c"]), helper.make_node("Identity", ["c"], ["c"]),
             helper.make_node("Gemm", ["x", "b"], ["y"], name="circle"),
             helper.make_node("MatMul", ["x", "c"], ["z"], name="loop"),
             helper.make_node("MatMul", ["x", "w"], ["v"], name="layer")]
    proto = model(nodes, {"x": ["N", 4]}, {"y": 2}, {"w": weights(4, 4)})
    layers = by_name(prune(proto, 0.5))
    assert layers["circle"].kept == "its weights are no dense constant"
    assert layers["layer"].after == 8


def test_weights_that_cannot_be_pruned() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"], name="run-time"),
        helper.make_node("Gemm", ["x", "whole"], ["b"], name="whole numbers"),
        helper.make_node("Exp", ["w"], ["computed"]),
        helper.make_node("Gemm", ["x", "computed"], ["c"], name="computed"),
    ]
    proto = model(nodes, {"x": ["N", 2], "k": [1, 1, 1, 1]}, {"a": None, "b": 2, "c": 2},
                  {"whole": np.ones((2, 2), np.int32), "w": weights(2, 2)})
    layers = by_name(prune(proto, 0.5))
    assert layers["run-time"].kept == layers["computed"].kept == "its weights are no dense constant"
    assert layers["whole numbers"].kept == "its weights are int32"


@pytest.mark.parametrize(("op", "attributes"), [
    ("Constant", {"value_float": 2.0}), ("Constant", {"value_floats": [1.0, 2.0]}),
    ("Constant", {"value_ints": [1, 2]}), ("Constant", {"sparse_value": helper.make_sparse_tensor(
        numpy_helper.from_array(np.float32([3])), numpy_helper.from_array(np.int64([2])), [2, 2])}),
    ("ConstantOfShape", {"value": numpy_helper.from_array(np.float32([3]))})],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value)
@pytest.mark.parametrize("layer", ["Gemm", "MatMul"])
def test_constants_that_are_no_tensor(op: str, attributes: dict[str, Any], layer: str) -> None:
    nodes = [helper.make_node(op, ["shape"] if op == "ConstantOfShape" else [], ["k"],
                              **attributes),
             helper.make_node(layer, ["x", "k"], ["y"], name="product"),
             helper.make_node("MatMul", ["x", "w"], ["z"], name="dense")]
    proto = model(nodes, {"x": ["N", 2], "shape": [2]}, {"y": None, "z": 2}, {"w": weights(2, 2)},
                  types={"shape": TensorProto.INT64})
    layers = by_name(prune(proto, 0.5))
    assert layers.pop("dense").after == 2
    assert {name: found.kept for name, found in layers.items()} == (
        {"product": "its weights are no dense constant"} if layer == "Gemm" else {})
    assert proto.graph.node[0] == nodes[0]


@pytest.mark.parametrize(("sparsity", "hint"), [
    (1.0, ""), (1.5, "; 1.5% is 0.015"), (90.0, "; 90% is 0.9"), (99.5, "; 99.5% is 0.995"),
    (100.0, ""), (100.5, ""), (-1.0, ""), (float("nan"), "")])
def test_a_share_in_percent_is_told_as_a_fraction(sparsity: float, hint: str) -> None:
    assert check_sparsity(sparsity) == f"expected 0 or more and less than 1{hint}"
    assert check_sparsity(0.0) is None is check_sparsity(0.999)


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 90.0, float("nan"), float("inf")])
def test_shares_outside_of_the_range(sparsity: float) -> None:
    for arguments in ((sparsity, None), (None, {"point": sparsity})):
        with pytest.raises(InputError, match="expected 0 or more and less than 1"):
            prune(network(), *arguments)


def test_unknown_and_repeated_names() -> None:
    with pytest.raises(InputError, match="no layer is called 'pont'; close to it: 'point'"):
        prune(network(), None, {"pont": 0.5})
    with pytest.raises(InputError, match="no layer is called '§'; there are 'w1', 'dw'"):
        prune(network(), None, {"§": 0.5})
    with pytest.raises(InputError, match="'w2' is given twice"):
        prune(network(), None, {"point": 0.5, "w2": 0.5})


def products(*names: str) -> onnx.ModelProto:
    """Returns products of those names, one behind the other, with the weights w0, w1, ..."""
    nodes = [helper.make_node("MatMul", [f"v{index}", f"w{index}"], [f"v{index + 1}"], name=name)
             for index, name in enumerate(names)]
    return model(nodes, {"v0": ["N", 2]}, {f"v{len(names)}": 2},
                 {f"w{index}": weights(2, 2) for index in range(len(names))})


NAMES = [f"{letter}_of_the_whole_network" for letter in "abcdefg"]


@pytest.mark.parametrize(("layers", "name", "told"), [
    (NAMES[:5], "", f"there are {', '.join(map(repr, NAMES[:5]))}"),
    (NAMES[:6], "", f"there are {', '.join(map(repr, NAMES[:5]))}, ..."),
    (NAMES, "K", f"close to it: {', '.join(map(repr, NAMES[:5]))}"),
    (["Backbone.Head.Product", *NAMES], "head", "close to it: 'Backbone.Head.Product'"),
    (["wheel", "whale", *NAMES], "whel", "close to it: 'wheel', 'whale'"),
    (["whole.wheel", "wheel", *NAMES[:1]], "wheel.", "close to it: 'wheel', 'whole.wheel'"),
], ids=["five", "six", "contained", "in another case", "misspelt", "the most similar first"])
def test_close_names_are_told_or_the_first_ones(layers: list[str], name: str, told: str) -> None:
    with pytest.raises(InputError) as raised:
        prune(products(*layers), 0.5, keep=[name])
    assert str(raised.value) == f"no layer is called {name!r}; {told}"


def test_the_first_reason_why_a_layer_is_kept_is_told() -> None:
    proto = products("first", "second")
    proto.graph.node[1].input[1] = "w0"
    layers = by_name(prune(proto, 0.5, keep=["first", "second"]))
    assert layers["first"].kept == "named to be kept"
    assert layers["second"].kept == "has the weights of 'first'"
    proto = products("whole numbers")
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((2, 2), np.int32), "w0"))
    proto.graph.node.append(helper.make_node("Neg", ["w0"], ["z"]))
    assert prune(proto, 0.5)[0].kept == "its weights are int32"


def test_a_damaged_file_in_which_a_node_makes_stored_weights() -> None:
    proto = products("layer")
    proto.graph.node.insert(0, helper.make_node("Identity", ["v0"], ["w0"]))
    (layer,) = prune(proto, 0.5)
    assert (layer.weight, layer.after) == ("w0", 2)


@pytest.mark.parametrize("op", ["Identity", "Transpose"])
def test_a_damaged_file_with_a_node_that_reads_nothing(op: str) -> None:
    proto = products("layer", "of nothing")
    proto.graph.node.insert(0, helper.make_node(op, [], ["nothing"]))
    proto.graph.node.append(helper.make_node("Gemm", ["v0", "nothing"], ["z"], name="damaged"))
    proto.graph.node[2].input[1] = "nothing"
    layers = by_name(prune(proto, 0.5))
    assert layers.keys() == {"layer", "damaged"} and layers["layer"].after == 2
    assert layers["damaged"].kept == "its weights are no dense constant"


def test_layers_of_one_name() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], name="same"),
             helper.make_node("MatMul", ["a", "v"], ["b"], name="same")]
    proto = model(nodes, {"x": ["N", 4]}, {"b": 2}, {"w": weights(4, 4), "v": weights(4, 4)})
    layers = by_name(prune(proto, None, {"same_2": 0.5}))
    assert layers["same"].after == 16 and layers["same_2"].after == 8


def test_layers_have_the_names_of_reports() -> None:
    proto = products("first", "scores", "last")
    proto.graph.node[1].input[1] = "v1"  # a product of two run-time values
    for node in proto.graph.node:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'head', 'linear']")
    names = [layer.name for layer in prune(proto, 0.5, keep=["first"])]
    assert names == ["head/MatMul", "head/MatMul_3"]
    assert names == [node.name for node in optimise(load(proto)).nodes][::2]
    assert [layer.after for layer in prune(proto, None, {"first": 0.75})] == [1, 2]


def test_a_damaged_tensor() -> None:
    proto = network()
    proto.graph.initializer[0].raw_data = b"\0" * 7
    with pytest.raises(ModelError, match="tensor 'w1' of Conv 'Conv_a' is damaged"):
        prune(proto, 0.5)


@pytest.mark.shared
def test_a_real_network(shared_model, tmp_path: Path) -> None:
    proto = onnx.load(shared_model("squeezenet_pruned"))
    layers = prune(proto, 0.9)
    onnx.checker.check_model(proto, full_check=True)
    weights_ = sum(layer.size for layer in layers)
    assert len(layers) == 26 and sum(layer.before for layer in layers) / weights_ > 0.3
    assert weights_ - sum(layer.after for layer in layers) == round(0.9 * weights_)


def test_two_of_every_four_input_channels() -> None:
    before, layers, after = pruned(network(), pattern="2:4")
    fours = np.moveaxis(after["w2"], 1, -1).reshape(-1, 4)
    originals = np.moveaxis(before["w2"], 1, -1).reshape(-1, 4)
    assert ((fours != 0).sum(axis=1) == 2).all()
    largest = np.sort(np.abs(originals), axis=1)[:, 2:]
    np.testing.assert_array_equal(np.sort(np.abs(fours), axis=1)[:, 2:], largest)
    assert layers["Conv_a"].kept == "3 input channels are no multiple of 4"
    assert layers["thin"].kept == "depthwise"
    assert layers["classes"].kept == "10 input channels are no multiple of 4"


@pytest.mark.parametrize("op, transposed, axis", [("Gemm", 0, 0), ("Gemm", 1, 1), ("MatMul", 0, 0)])
def test_fours_lie_along_the_sums_of_products(op: str, transposed: int, axis: int) -> None:
    stored = weights(*((5, 8) if transposed else (8, 5)))
    attributes = {"transB": transposed} if op == "Gemm" else {}
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    proto = model([node], {"x": ["N", 8]}, {"y": 2}, {"w": stored})
    _, _, after = pruned(proto, pattern="2:4")
    fours = np.moveaxis(after["w"], axis, -1).reshape(-1, 4)
    assert ((fours != 0).sum(axis=1) == 2).all()


def test_whole_channels() -> None:
    before, layers, after = pruned(network(), 0.25, pattern="channels")
    norms = np.square(before["w1"].astype(np.float64)).sum(axis=(1, 2, 3))
    gone = np.flatnonzero(~after["w1"].any(axis=(1, 2, 3)))
    assert sorted(gone) == sorted(np.argsort(norms)[:2])
    others = np.setdiff1d(np.arange(8), gone)
    np.testing.assert_array_equal(after["w1"][others], before["w1"][others])
    # without their biases the channels can be left out
    np.testing.assert_array_equal(np.flatnonzero(after["b1"] == 0), gone)
    np.testing.assert_array_equal(after["b1"][others], before["b1"][others])
    assert (~after["w2"].any(axis=(1, 2, 3))).sum() == round(0.25 * 10)
    assert layers["classes"].kept == "its channels are those of an output of the network"
    assert layers["thin"].kept == "depthwise"


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_norms_of_channels_that_are_tiny_or_huge(scale: float) -> None:
    stored = (weights(8, 3, 3, 3) * scale).astype(np.float32)
    _, _, after = pruned(network(w1=stored), 0.5, pattern="channels")
    norms = np.square(stored.astype(np.float64) / scale).sum(axis=(1, 2, 3))
    gone = np.flatnonzero(~after["w1"].any(axis=(1, 2, 3)))
    assert sorted(gone) == sorted(np.argsort(norms)[:4])


@pytest.mark.parametrize("pattern, sparsity", [("unstructured", 0.5), ("2:4", None),
                                               ("channels", 0.5)])
def test_layers_that_are_named_to_be_kept(pattern: str, sparsity: float | None) -> None:
    before, layers, after = pruned(network(), sparsity, pattern=pattern, keep=["point", "w1"])
    assert layers["point"].kept == layers["Conv_a"].kept == "named to be kept"
    for name in ("w1", "w2"):
        np.testing.assert_array_equal(after[name], before[name])


def test_a_bias_that_two_layers_add_stays() -> None:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"]),
             helper.make_node("Conv", ["c", "v", "b"], ["d"]),
             helper.make_node("GlobalAveragePool", ["d"], ["y"])]
    bias = weights(4)
    proto = model(nodes, {"x": ["N", 3, 8, 8]}, {"y": 4},
                  {"w": weights(4, 3, 3, 3), "v": weights(4, 4, 3, 3, seed=8), "b": bias})
    prune(proto, 0.5, pattern="channels")
    np.testing.assert_array_equal(arrays_of(proto)["b"], bias)


def test_patterns_that_there_are_not() -> None:
    with pytest.raises(InputError, match="pattern '4:8': expected one of unstructured, 2:4, chan"):
        prune(network(), 0.5, pattern="4:8")
    for arguments in ((0.9, None), (None, {"point": 0.5}), (0.5, {"point": 0.5})):
        with pytest.raises(InputError, match="2:4 makes half of the weights zero"):
            prune(network(), *arguments, pattern="2:4")


def test_weights_behind_other_ops_have_no_pattern() -> None:
    nodes = [helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
             helper.make_node("MatMul", ["x", "t"], ["y"])]
    proto = model(nodes, {"x": ["N", 8]}, {"y": 2}, {"w": weights(5, 8)})
    layer, = prune(proto, pattern="2:4")
    assert layer.kept == "other ops come between its stored weights and the layer"
