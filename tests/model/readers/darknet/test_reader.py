"""Darknet's files become graphs that compute what Darknet computes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gossamer
from gossamer.errors import GossamerError, ModelError
from gossamer.io.images import Preprocessing
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.metadata import DetectionHead, DetectorMetadata
from gossamer.model.onnx_writer import to_onnx
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.model.readers.darknet.interpreter import parse, random_weights
from tests.model.readers.darknet.networks import NETWORKS, conv, head, net, section
from tests.networks.compared import several
from tests.plan.small import assert_as_runtime, reloaded
from tests.tolerances import normalised_error, tolerance

EXACT = 1e-6
"""Largest normalised error of float64 arithmetic on weights that were rounded to float32."""


def images_for(text: str, batch: int = 2) -> np.ndarray:
    options = parse(text)[0][1]
    shape = [int(options[key]) for key in ("channels", "height", "width")]
    return np.random.default_rng(1).random((batch, *shape)).astype(np.float32)


def check(text: str, folder: Path, version: tuple[int, int, int] = (0, 2, 5)) -> Graph:
    """Compares the graph of a .cfg with the interpreter, before and after optimisation."""
    images = images_for(text)
    (folder / "net.cfg").write_text(text)
    expected = random_weights(folder / "net.weights", text, images, version=version)
    graph = gossamer.load(folder / "net.cfg")
    assert len(graph.outputs) == len(expected)
    for form in (graph, optimise(graph)):
        values = execute(resolve(form, len(images)), {form.inputs[0].name: images})
        for info, y in zip(graph.outputs, expected, strict=True):
            result = values[info.name]
            assert result.shape == (len(images), *info.shape[1:])
            assert normalised_error(result.reshape(y.shape), y) <= EXACT
    return graph


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_people_publish(name: str, tmp_path: Path) -> None:
    graph = check(NETWORKS[name], tmp_path)
    assert not graph.warnings
    images = images_for(NETWORKS[name])
    plan = gossamer.compile(graph, "host")
    onnx.save(to_onnx(graph), tmp_path / "net.onnx")
    assert_as_runtime(plan, to_onnx(graph), images)
    assert gossamer.load(tmp_path / "net.onnx").metadata == graph.metadata
    assert reloaded(plan, tmp_path).graph.metadata == graph.metadata


def test_devices_compute_the_same(quick_device, tmp_path: Path) -> None:
    """A pool, mish, a shortcut, reorg and routes: what heads and further blocks have in common."""
    text = (net(8, 16) + conv(4) + section("maxpool", size=2, stride=2) + conv(4, 1, 1, "mish")
            + section("shortcut", from_="-2", activation="linear") + section("reorg", stride=2)
            + section("route", layers="0") + conv(4, 3, 4) + section("route", layers="-1,-3"))
    images = images_for(text)
    (tmp_path / "net.cfg").write_text(text)
    (wide,) = random_weights(tmp_path / "net.weights", text, images)
    y = gossamer.compile(str(tmp_path / "net.cfg"), quick_device, strict=True)(images)
    assert normalised_error(y, wide.reshape(y.shape)) <= tolerance("network")


@pytest.mark.parametrize("layers", [
    section("maxpool", size=3, stride=2, padding=1), section("maxpool", stride=3),
    section("maxpool", size=4, stride_x=1, stride_y=3), section("maxpool", size=6, stride=1),
    section("local_avg", size=3, stride=2), section("local_avgpool", size=2, stride=1),
    section("conv", filters=5), section("convolutional", filters=4, size=2, padding=1, stride=3),
    conv(4, 3, 1, "mish", stride_x=2, stride_y=1), conv(5, 5, flipped=1), conv(6, 3, dilation=2),
    conv(8, 3, 2) + conv(8, 3, groups=8) + conv(4, 1, groups=2),
    conv(8) + section("reorg", stride=2), conv(8) + section("reorg", stride=2, reverse=1),
    section("reorg3d", stride=2), conv(12) + section("route", layers="-1", groups=3, group_id=2),
    conv(6) + conv(4) + section("shortcut", from_="-2", activation="leaky"),
    conv(4) + conv(6) + section("shortcut", from_="0"),
    conv(4) + conv(6, 3, 2) + section("shortcut", from_="0", activation="relu"),
    conv(4) + conv(4) + conv(4) + section("shortcut", from_="-2,0, -3"),
    conv(6) + section("avg") + conv(3, 1, activation="relu") + conv(6, 1, activation="logistic")
    + section("scale_channels", from_=0, activation="swish"),
    conv(6) + conv(1) + section("scale_channels", from_=-2, scale_wh=1),
    conv(5) + conv(5) + section("sam", from_="-2"), section("upsample", scale=0.5),
    section("upsample", stride=3), section("crop", crop_width=10, crop_height=7),
    section("crop", crop_width=9, crop_height=6, noadjust=1), section("dropout") + conv(2),
    section("conn", output=6, activation="relu") + section("softmax", groups=2, temperature=0.7),
    section("connected", batch_normalize=1, output=6, activation="leaky") + section("dropout"),
    section("connected", output=8) + conv(3, 1) + section("connected", output=2),
    conv(3) + section("batchnorm") + section("activation", activation="elu") + section("empty"),
    *(section("convolutional", filters=3, activation=name) for name in (
        "linear", "leaky", "mish", "swish", "relu", "logistic", "relu6", "tanh", "hard_mish", "elu",
        "selu", "gelu", "ramp", "loggy")),
], ids=lambda text: ",".join(text.split())[1:60])
def test_layers(layers: str, tmp_path: Path) -> None:
    graph = check(net(16, 12) + layers, tmp_path)
    assert_as_runtime(gossamer.compile(graph, "host"), to_onnx(graph), images_for(net(16, 12)))


@st.composite
def chains(draw: st.DrawFn) -> str:
    """A chain of layers with joints to earlier ones, whose sizes stay alike where they must."""
    parts, sizes = [net(draw(st.integers(8, 20)), draw(st.integers(8, 20)))], []
    height, width, channels = (int(parse(parts[0])[0][1][key])
                               for key in ("height", "width", "channels"))
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(("convolutional", "maxpool", "route", "shortcut", "upsample")))
        same = [index for index, size in enumerate(sizes) if size[:2] == (height, width)]
        if kind == "convolutional" or (kind in ("route", "shortcut") and not same):
            size, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
            groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
            channels = groups * draw(st.integers(1, 4))
            parts.append(section(
                "convolutional", batch_normalize=draw(st.integers(0, 1)), filters=channels,
                size=size, stride=stride, pad=1, groups=groups,
                activation=draw(st.sampled_from(("leaky", "mish", "linear")))))
            pad = size // 2
            height = (height + 2 * pad - size) // stride + 1
            width = (width + 2 * pad - size) // stride + 1
        elif kind == "maxpool":
            size, stride = draw(st.integers(1, 5)), draw(st.integers(1, 2))
            parts.append(section("maxpool", size=size, stride=stride))
            height, width = (height - 1) // stride + 1, (width - 1) // stride + 1
        elif kind == "upsample" and height * width < 900:
            parts.append(section("upsample", stride=2))
            height, width = 2 * height, 2 * width
        elif kind == "route" and same:
            chosen = draw(st.lists(st.sampled_from(same), min_size=1, max_size=3))
            parts.append(section("route", layers=", ".join(map(str, chosen))))
            channels = sum(sizes[index][2] for index in chosen)
        else:
            back = draw(st.sampled_from(same or [0]))
            if not same:
                continue
            parts.append(section("shortcut", from_=back - len(sizes),
                                 activation=draw(st.sampled_from(("linear", "leaky")))))
        sizes.append((height, width, channels))
    return "".join(parts) if len(parts) > 1 else parts[0] + conv(2)


@given(chains())
def test_chains_of_layers(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    check(text, tmp_path_factory.mktemp("chain"))


@pytest.mark.parametrize("version", [(0, 1, 0), (0, 2, 0), (0, 2, 5), (1, 0, 0)])
def test_headers_of_both_versions(version: tuple[int, int, int], tmp_path: Path) -> None:
    graph = check(NETWORKS["yolov3_tiny"], tmp_path, version)
    # the cfg has no option of AlexeyAB's fork alone: the revision tells whose network it is
    assert graph.metadata.detector.resize == ("stretch" if version[2] else "letterbox")


@pytest.mark.parametrize("version", [(0, 2, 0), (0, 2, 5)])
def test_a_batch_norm_of_its_own_has_biases_in_the_fork(version: tuple[int, int, int],
                                                        tmp_path: Path) -> None:
    check(net(8, 8) + conv(3) + section("batchnorm") + conv(2), tmp_path, version)


def test_very_old_files_have_matrices_the_other_way_round(tmp_path: Path) -> None:
    text = section("net", inputs=5) + section("connected", output=3, activation="linear")
    biases, weights = np.float32([1, 2, 3]), np.arange(15, dtype=np.float32).reshape(5, 3)
    (tmp_path / "net.cfg").write_text(text)
    (tmp_path / "net.weights").write_bytes(
        np.array([0, 1001, 0, 64], "<i4").tobytes() + biases.tobytes() + weights.tobytes())
    x = np.random.default_rng(0).random((4, 5)).astype(np.float32)
    y = gossamer.compile(gossamer.load(tmp_path / "net.cfg"), "host")(x)
    np.testing.assert_allclose(y, x @ weights + biases, rtol=1e-5)


def load_text(folder: Path, text: str, version: tuple[int, int, int] = (0, 2, 0)) -> gossamer.Plan:
    (folder / "net.cfg").write_text(text)
    random_weights(folder / "net.weights", text, images_for(text), version=version)
    return gossamer.load(folder / "net.cfg")


def test_heads_say_how_boxes_are_decoded(tmp_path: Path) -> None:
    metadata = load_text(tmp_path, NETWORKS["yolov4_csp"]).metadata
    anchors = ((10, 14), (23, 27), (37, 58), (81, 82), (135, 169), (344, 319))
    assert metadata.anchors == anchors
    assert metadata.detector == DetectorMetadata(
        (DetectionHead("yolo", (0, 1, 2), 2.0, True),), 2, "stretch", nms_kind="diounms")
    assert metadata.preprocessing == Preprocessing((32, 32), scale=1 / 255)
    metadata = load_text(tmp_path, NETWORKS["yolov2"]).metadata
    cell = 4
    np.testing.assert_allclose(metadata.anchors, np.multiply(
        ((0.57273, 0.677385), (1.87446, 2.06253)), cell))
    assert metadata.detector == DetectorMetadata(
        (DetectionHead("region", (0, 1), softmax=True),), 2, "letterbox")


def test_heads_with_anchors_of_their_own(tmp_path: Path) -> None:
    text = net() + conv(4) + head(1, "0,1") + section("route", layers="0") + head(1, "1").replace(
        "10,14", "11,15") + section("route", layers="0") + head(1, "4")
    detector = load_text(tmp_path, text).metadata.detector
    assert [head.mask for head in detector.heads] == [(0, 1), (7,), (4,)]
    assert len(gossamer.load(tmp_path / "net.cfg").metadata.anchors) == 12


@pytest.mark.parametrize("letter_box", [0, 1])
def test_a_network_may_say_that_photos_keep_their_proportions(letter_box: int,
                                                              tmp_path: Path) -> None:
    text = NETWORKS["yolov4"].replace("mosaic=1", f"letter_box={letter_box}")
    resize = load_text(tmp_path, text).metadata.detector.resize
    assert resize == ("letterbox" if letter_box else "stretch")


def test_names_lie_beside_the_cfg(tmp_path: Path) -> None:
    graph = load_text(tmp_path, NETWORKS["yolov3_tiny"])
    assert graph.metadata.classes == ()
    (tmp_path / "net.names").write_text("cat\ndog \n")
    assert gossamer.load(tmp_path / "net.cfg").metadata.classes == ("cat", "dog")
    (tmp_path / "net.names").write_bytes(b"\xef\xbb\xbfcat\r\n\r\ndog\r\n")
    assert gossamer.load(tmp_path / "net.cfg").metadata.classes == ("cat", "dog")
    (tmp_path / "net.names").write_text("cat\n")
    graph = gossamer.load(tmp_path / "net.cfg")
    assert graph.metadata.classes == ()
    assert ("net.names: has 1 names, one per line, but the network has 2 classes"
            in graph.warnings[0])


def test_a_classifier_without_names_does_not_get_those_of_imagenet(tmp_path: Path) -> None:
    metadata = load_text(tmp_path, NETWORKS["darknet19"]).metadata
    assert metadata.classes[:2] == ("class 0", "class 1") and metadata.detector is None
    assert metadata.preprocessing == Preprocessing((32, 32), 32, scale=1 / 255)


def test_many_outputs_are_no_classes(tmp_path: Path) -> None:
    (tmp_path / "net.weights").write_bytes(bytes(16))  # the header alone: no layer has weights
    for layer, classes in (("[avgpool]\n", ("class 0",)), ("[maxpool]\nsize=1\nstride=1\n", ())):
        (tmp_path / "net.cfg").write_text(net(400, 400, 1) + f"{layer}[softmax]\n")
        assert gossamer.load(tmp_path / "net.cfg").metadata.classes == classes


def test_weights_may_lie_elsewhere(tmp_path: Path) -> None:
    load_text(tmp_path, NETWORKS["darknet19"])
    other = (tmp_path / "net.weights").rename(tmp_path / "trained.bin")
    first = gossamer.load(tmp_path / "net.cfg", weights=other)
    again = gossamer.load(str(tmp_path / "net.cfg"), str(other))
    assert first.constants.keys() == again.constants.keys()


def test_text_as_people_write_it(tmp_path: Path) -> None:
    text = ("\ufeff# a comment\r\n[network]\r\n width = 8\r\nheight=8 # pixels\r\nchannels=3\r\n"
            "; another\r\n\r\n[conv]\r\nfilters = 2\r\nfilters=7\r\nsize=1\r\nactivation = leaky"
            "\r\n")
    (tmp_path / "net.cfg").write_bytes(text.encode() + b"# caf\xe9\n")
    (tmp_path / "net.weights").write_bytes(bytes(16 + 4 * 8))
    assert gossamer.load(tmp_path / "net.cfg").outputs[0].shape == (None, 2, 8, 8)


@pytest.mark.skipif(os.name != "posix", reason="pipes with names are POSIX's")
@pytest.mark.parametrize("name", ["net.cfg", "net.weights"])
def test_a_pipe_is_not_read(name: str, tmp_path: Path) -> None:
    load_text(tmp_path, NETWORKS["yolov4_tiny"])
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(GossamerError, match=r"not a regular file|weights file is missing"):
        gossamer.load(tmp_path / "net.cfg")


def test_a_layer_of_more_weights_than_memory_holds(tmp_path: Path) -> None:
    text = net(8, 8) + section("connected", output=4, activation="relu")
    load_text(tmp_path, text)
    (tmp_path / "net.cfg").write_text(text.replace("output=4", f"output={2**24}"))
    with pytest.raises(ModelError, match=r"alone needs \d+ numbers"):
        gossamer.load(tmp_path / "net.cfg")


@pytest.mark.parametrize("name", NETWORKS)
def test_raw_heads_are_those_of_opencv(name: str, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason='pip install "opencv-python-headless<5"')
    images = images_for(NETWORKS[name], 1)
    cfg = tmp_path / "net.cfg"
    cfg.write_text(NETWORKS[name])
    random_weights(cfg.with_suffix(".weights"), NETWORKS[name], images)
    graph = gossamer.load(cfg)
    network = cv2.dnn.readNetFromDarknet(str(cfg), str(cfg.with_suffix(".weights")))
    network.setInput(images)
    kind = {"darknet19": "softmax", "darknet53": "softmax", "yolov4_csp": "logistic",
            "yolov7_tiny": "logistic"}.get(name, "conv")
    # OpenCV counts the activation of layer 2 as 3
    layers = [f"{kind}_{int(info.name.split('_')[1].split('.')[0]) + (kind == 'logistic')}"
              for info in graph.outputs]
    for y, expected in zip(several(gossamer.compile(graph, "host")(images)),
                           network.forward(layers), strict=True):
        # OpenCV adds 1e-6 to the variances, Darknet 1e-5
        assert normalised_error(y, np.reshape(expected, y.shape)) <= 1e-4
