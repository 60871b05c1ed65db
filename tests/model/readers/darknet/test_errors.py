"""Wrong Darknet files are refused in one line that names the file, the line and what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gossamer
from gossamer.errors import InputError, ModelError, UnsupportedError
from tests.model.readers.darknet.networks import NETWORKS, conv, head, net, section
from tests.model.readers.darknet.test_reader import load_text

TINY = net(8, 8) + section("convolutional", filters=2, size=1, activation="leaky")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A folder with a network of one convolution of 8 numbers."""
    load_text(tmp_path, TINY)
    return tmp_path


@pytest.mark.parametrize(("old", "new", "message"), [
    ("[convolutional]", "[convolutonal]", r"net.cfg: line 6: gossamer does not know the section "
                                          r"\[convolutonal\]; do you mean \[convolutional\]\?"),
    ("[convolutional]", "[rbm]", r"line 6: .* the section \[rbm\]; it knows activation, avgpool"),
    ("[convolutional]", "[YOLO]", r"line 6: .* the section \[YOLO\]; do you mean \[yolo\]\?"),
    ("[convolutional]", "[conv_lstm]", r"line 6: \[conv_lstm\] is a section of Darknet that "
                                       "gossamer does not compute; it computes activation, avgp"),
    ("[convolutional]", "[convolutional", r"line 6: .*\[convolutional; do you mean"),
    ("[convolutional]", "[net]", "line 6: a second section"),
    ("[net]", "[convolutional]", r"net.cfg: does not begin with the section \[net\]"),
    ("[net]", "width=3", r"line 1: 'width=3' is not expected here; expected a section like \[net"),
    ("filters=2", "filters", "line 7: 'filters' is not expected here; expected key=value or a sec"),
    ("filters=2", "filters=two", r"line 7: \[convolutional\] filters is 'two', expected a whole "
                                 r"number of 1 or more"),
    ("filters=2", "filters=0", "line 7: .* filters is '0', expected a whole number of 1 or more"),
    ("filters=2", "filters=2.5", "line 7: .* filters is '2.5', expected a whole number"),
    ("filters=2", "filters=99999999999", "filters is '99999999999', expected a whole number"),
    ("filters=2", "filters=2147483647\ngroups=1", "alone needs 2147483647 numbers"),
    ("size=1", "size=9", r"line 8: .* size=9 does not fit an input of 8x8"),
    ("size=1", "size=1\ngroups=2", "line 9: .* 3 input channels and 2 filters do not divide"),
    ("size=1", "size=3\ndilation=2", r"line 9: .* dilation=2 with a padding of 0: .*; pad by 1"),
    ("size=1", "size=1\nxnor=1", r"line 9: \[convolutional\] xnor=1 is not computed"),
    ("size=1", "size=1\nantialiasing=1", r"line 9: .* antialiasing=1 is not computed"),
    ("leaky", "lhtan", "line 9: .* activation=lhtan is not computed; gossamer computes linear, "),
    ("width=8", "width=", "width is '', expected a whole number"),
    ("width=8", "", r"line 1: \[net\] lacks width=..."),
])
def test_a_wrong_line(old: str, new: str, message: str, tiny: Path) -> None:
    (tiny / "net.cfg").write_text(TINY.replace(old, new))
    with pytest.raises(ModelError, match=message) as raised:
        gossamer.load(tiny / "net.cfg")
    assert "\n" not in str(raised.value) and "net.cfg" in str(raised.value)


@pytest.mark.parametrize(("layers", "message"), [
    (conv(4) + section("route", layers="1"),
     r"line 14: \[route\] layers names layer 1, and 1 layers"),
    (conv(4) + section("route", layers="-2"), "layers names layer -2"),
    (section("route", groups=1), "line 6: .* lacks layers="),
    (conv(4) + section("route", layers="0", groups=3),
     "4 channels of layer 0 do not divide into 3"),
    (conv(4) + section("route", layers="0", groups=2, group_id=2),
     "group_id=2 is none of 2 groups"),
    (conv(4) + conv(4, 3, 2) + section("route", layers="-1,-2"),
     r"joins layers of different sizes \(-1: 4x4, -2: 8x8\)"),
    (conv(4) + section("shortcut", activation="linear"), "lacks from="),
    (conv(4) + conv(4, 3, 2) + section("upsample", stride=4) + section("shortcut", from_="0"),
     "adds a layer of 8x8 to one of 16x16"),
    (conv(4) + conv(4) + section("shortcut", from_="-2", weights_type="per_channel"),
     "weights_type=per_channel is not computed"),
    (conv(4) + conv(4) + section("scale_channels", from_="0"), "has 4x8x8, expected 4x1x1 for lay"),
    (section("reorg", stride=3), "an input of 8x8 is no multiple of stride=3"),
    (section("reorg", stride=2), "3 channels are no multiple of 2x2"),
    (conv(4) + section("reorg3d", stride=2, reverse=1), "reverse=1 is not computed"),
    (section("maxpool", size=2, stride=1, padding=9), "makes windows that lie beside the picture"),
    (section("maxpool", size=2, antialiasing=1), "antialiasing=1 is not computed"),
    (section("crop", crop_width=9, crop_height=8), "crops 8x9 of 8x8"),
    (section("softmax", groups=5), "192 numbers do not divide into 5 groups"),
    (section("softmax", tree="a.tree"), "tree=... is not computed"),
    (section("softmax", temperature=0), "temperature is 0, expected a number above 0"),
    (section("dropout"), "net.cfg: computes nothing"),
    (conv(7) + section("yolo", classes=1, num=1, anchors="1,2"),
     "reads 7 channels, expected 6: 1 anchors of 4 numbers, 1 objectness and 1 classes; set filt"),
    (head(1) + conv(4), r"\[convolutional\] reads layer 1, a detecting layer"),
    (head(1).replace("0,1,2", "0,1,6"), "mask is '0,1,6', expected numbers from 0 to 5"),
    (head(1).replace("344,319", "344"), "line 14: .*anchors has 11 numbers, expected 12 for num=6"),
    (head(1).replace("344,319", "344,x"), "expected numbers like 10, 13.5"),
    (head(1, scale_x_y=-1), "scale_x_y is '-1', expected a number from 0 to 100"),
    (head(1, beta_nms=101), "beta_nms is '101', expected a number from 0 to 100"),
    (head(1) + section("route", layers="-2") + head(2), r"classes=2 differs from the 1 of line 12"),
])
def test_layers_that_do_not_fit(layers: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "net.cfg").write_text(net(8, 8) + layers)
    (tmp_path / "net.weights").write_bytes(bytes(16))
    with pytest.raises(ModelError, match=message):
        gossamer.load(tmp_path / "net.cfg")


def test_what_darknet_computes_and_gossamer_does_not_has_a_class_of_its_own(tiny: Path) -> None:
    (tiny / "net.cfg").write_text(TINY.replace("leaky", "plse"))
    with pytest.raises(UnsupportedError):
        gossamer.load(tiny / "net.cfg")


def test_unknown_keys_are_told(tiny: Path) -> None:
    text = TINY + "".join(f"key{index}=1\n" for index in range(7))
    (tiny / "net.cfg").write_text(text)
    (warning,) = gossamer.load(tiny / "net.cfg").warnings
    assert warning == (f"{tiny / 'net.cfg'}: unknown keys are ignored: "
                       + ", ".join(f"'key{index}' of [convolutional] (line {10 + index})"
                                   for index in range(5)) + " and 2 more")


def test_a_key_that_is_nearly_known(tiny: Path) -> None:
    (tiny / "net.cfg").write_text(TINY.replace("filters", "Filters"))
    with pytest.raises(ModelError, match=r"too long by 4; is it .*unknown keys are ignored: 'Filter"
                                         r"s' of \[conv.*\] \(line 7\), do you mean 'filters'"):
        gossamer.load(tiny / "net.cfg")


def test_weights_of_another_cfg(tiny: Path) -> None:
    weights = tiny / "net.weights"
    whole = weights.read_bytes()
    for content, message in (
            (whole[:-4], r"net.weights: holds 7 numbers, .*net.cfg needs 8, so that it is too "
                         r"short: it ends within layer 0 \[convolutional\], line 6; is it .*"
                         "of another .cfg, or of its first layers alone"),
            (whole + bytes(12), "holds 11 numbers, .*net.cfg needs 8, so that it is too long by 3"),
            (whole[:-2], "has 50 bytes and ends within a number"),
            (whole[:19], "has 19 bytes, fewer than the header"), (b"", "has 0 bytes, fewer than"),
            (b"a text of some words", "is text, not a .weights file")):
        weights.write_bytes(content)
        with pytest.raises(ModelError, match=message):
            gossamer.load(tiny / "net.cfg")


def test_one_file_without_the_other(tiny: Path) -> None:
    with pytest.raises(InputError, match=r".weights holds the weights of a Darknet network: name "
                                         r"the .cfg file first"):
        gossamer.load(tiny / "net.weights")
    (tiny / "net.weights").rename(tiny / "other.weights")
    with pytest.raises(InputError, match=r"net.cfg: its weights file is missing: there is no "
                                         r".*net.weights; put it there, or name it: --weights "
                                         r"FILE.weights, or in Python gossamer.load"):
        gossamer.load(tiny / "net.cfg")
    with pytest.raises(InputError, match=r"cannot read .*absent.weights: No such file"):
        gossamer.load(tiny / "net.cfg", weights=tiny / "absent.weights")
    with pytest.raises(InputError, match=r"cannot read .*absent.cfg: No such file"):
        gossamer.load(tiny / "absent.cfg", weights=tiny / "other.weights")
    with pytest.raises(InputError, match=r"cannot read .*absent.cfg: No such file"):
        gossamer.load(tiny / "absent.cfg")
    for model in ("net.onnx", "mobilenet_v2"):
        with pytest.raises(InputError, match=f"{model}: .*takes no further file of weights; leave"):
            gossamer.load(model, weights="other.weights")
    with pytest.raises(InputError, match="takes no further file of weights; leave out b"):
        gossamer.load(tiny / "net.cfg", "a", weights="b")


def test_files_of_another_kind(tiny: Path) -> None:
    for content, message in ((b"\x93NUMPY\0", "is no text"), (b"", "does not begin with"),
                             (b"[net]\nwidth=3\n", "has no layers after the section")):
        (tiny / "net.cfg").write_bytes(content)
        with pytest.raises(ModelError, match=message):
            gossamer.load(tiny / "net.cfg")


def test_weights_that_are_not_finite_are_told(tiny: Path) -> None:
    content = bytearray((tiny / "net.weights").read_bytes())
    content[-4:] = np.float32(np.nan).tobytes()
    (tiny / "net.weights").write_bytes(content)
    (warning,) = gossamer.load(tiny / "net.cfg").warnings
    assert "weights 'convolutional_0.weights' of layer 0 [convolutional]" in warning


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_give_no_other_errors(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    load_text(tmp_path, NETWORKS["yolov4_tiny"])
    text = (tmp_path / "net.cfg").read_bytes()
    refused = 0
    for _ in range(60):
        changed = bytearray(text)
        for place in random.integers(0, len(text), 3):
            changed[place] = random.integers(32, 127)
        (tmp_path / "net.cfg").write_bytes(changed)
        try:
            gossamer.load(tmp_path / "net.cfg")
        except ModelError as error:
            refused += 1
            assert "net." in str(error) and "\n" not in str(error)
    assert refused > 20
