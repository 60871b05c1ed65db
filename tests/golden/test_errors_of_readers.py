"""What the readers say of files that they refuse: a case for each kind of message."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

from gossamer.errors import GossamerError
from gossamer.model.infer.resolve import resolve
from gossamer.model.readers.darknet.cfg import KEYS
from gossamer.model.readers.darknet.reader import load_darknet
from gossamer.model.readers.onnx.reader import load_onnx
from gossamer.plan.lower.rules import lower
from tests.golden import Golden
from tests.model.onnx_models import model
from tests.model.readers.darknet.networks import conv, head, net, section
from tests.model.readers.operator_cases import TABLES, cases, needs_onnx

Case = tuple[str, str, Callable[[], object]]
"""The words that name the subject of a message, the name of the case, and what is refused."""

FOREIGN = re.compile(r"(is malformed: [^(]*[^( ]|is damaged: \w+Error|is damaged:|"
                     r"not readable|is damaged|cannot be read|damaged zip archive)"
                     r"( ?\(| (?!its? )).*?(?=;|$)")
"""Matches what other libraries say in a message, and the words before it."""
VALUES = re.compile(r"\[[^\]]*\]|\([^)]*\)|'[^']*'|\S*\d\S*")


def kinds(found: Iterable[Case]) -> dict[str, str]:
    """Return the message of the first case of each kind. Messages are of one kind that differ in
    numbers, quoted words and their subject alone; other subjects are named, or counted."""
    first: dict[str, tuple[str, str]] = {}
    subjects: dict[str, set[str]] = {}
    for subject, case, work in found:
        try:
            work()
        except GossamerError as error:
            text = FOREIGN.sub(r"\1 ...", str(error))
            assert "\n" not in text
            named = "|".join(subject.split()) or "(?!)"
            kind = VALUES.sub("#", re.sub(rf"\b({named})\b", "", text))
            first.setdefault(kind, (case, text))
            subjects.setdefault(kind, set()).add(subject)
    return {f"{case} [{', '.join(sorted(each)) if len(each) < 9 else f'{len(each)} alike'}]"
            if len(each) > 1 else case: text
            for (case, text), each in zip(first.values(), subjects.values(), strict=True)}


def lowered(proto: onnx.ModelProto) -> object:
    return lower(resolve(load_onnx(proto), 2))


@needs_onnx
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_operators_of_onnx(golden: Golden, without_onnxruntime: None) -> None:
    for title in ("operators", "quantised operators"):
        golden.table("errors.txt", f"onnx: {title}", kinds(
            (name.rpartition(".")[2], case, partial(lowered, proto))
            for table in TABLES if (table == "quantised") == (title != "operators")
            for name, operator in TABLES[table].items() for case, proto in cases(name, operator)))


def node(graph: onnx.GraphProto, op: str, *attributes: onnx.AttributeProto, **fields: str) -> None:
    graph.node[0].MergeFrom(onnx.NodeProto(op_type=op, attribute=attributes, **fields))


def constant(graph: onnx.GraphProto, dims: list[int], size: int) -> None:
    graph.initializer.append(TensorProto(name="w", dims=dims, data_type=1, raw_data=bytes(size)))


CHANGES: dict[str, Callable[[onnx.GraphProto], Any]] = {
    "input without a shape": lambda g: g.input[0].type.tensor_type.ClearField("shape"),
    "input of texts": lambda g: setattr(g.input[0].type.tensor_type, "elem_type", 8),
    "input of uint32": lambda g: setattr(g.input[0].type.tensor_type, "elem_type", 12),
    "output of int64": lambda g: setattr(g.output[0].type.tensor_type, "elem_type", 7),
    "two inputs of a name": lambda g: g.input.append(g.input[0]),
    "output of no node": lambda g: setattr(g.output[0], "name", "z"),
    "node that reads nothing": lambda g: g.node[0].input.__setitem__(0, "z"),
    "node that reads itself": lambda g: g.node[0].input.__setitem__(0, "y"),
    "two nodes of a name": lambda g: g.node.append(g.node[0]),
    "node of a detector": lambda g: node(g, "EfficientNMS_TRT"),
    "output that is not computed": lambda g: g.node[0].CopyFrom(helper.make_node(
        "MaxPool", ["x"], ["z", "y"], "n", kernel_shape=[1])),
    "attribute of another type": lambda g: node(g, "Elu", AttributeProto(name="alpha", type=2)),
    "attribute of two values": lambda g: node(g, "Elu", AttributeProto(
        name="alpha", type=1, f=1, i=3)),
    "attribute twice": lambda g: node(g, "Relu", *[helper.make_attribute("a", 1)] * 2),
    "constant of 7 bytes": lambda g: constant(g, [2], 7),
    "constant of fewer than 0": lambda g: constant(g, [-1], 4),
    "name that is no text": lambda g: g.node[0].MergeFromString(b"\x22\x02\xff\xfe"),
}


@needs_onnx
def test_networks_of_onnx(golden: Golden, without_onnxruntime: None) -> None:
    def changed(change: Callable[[onnx.GraphProto], Any]) -> object:
        proto = onnx.ModelProto.FromString(whole)
        change(proto.graph)
        return lowered(proto)

    whole = model([helper.make_node("Relu", ["x"], ["y"], "n")], {"x": ["N", 3]},
                  {"y": 2}).SerializeToString()
    golden.table("errors.txt", "onnx: networks", kinds([
        *(("", case, partial(changed, change)) for case, change in CHANGES.items()),
        *(("", case, partial(load_onnx, content)) for case, content in {
            "cut": whole[:-1], "empty": b"", "text": b"a text", "number": 3}.items())]))


BODY, LAYERS = net(6, 5, 4), net(6, 5) + conv(4) + conv(4)
SECTIONS = {
    "convolutional": (BODY, "filters=4 size=3 stride=1 pad=1"), "softmax": (BODY, "groups=1"),
    "connected": (BODY, "output=3 activation=linear"), "crop": (BODY, "crop_height=3 crop_width=4"),
    "maxpool": (BODY, "size=2 stride=2"), "local_avgpool": (BODY, "size=3 stride=2"),
    "upsample": (BODY, "stride=2"), "reorg": (net(4, 6, 8), "stride=2"), "sam": (LAYERS, "from=0"),
    "reorg3d": (net(4, 6), "stride=2"), "activation": (BODY, "activation=relu"),
    "route": (LAYERS, "layers=-1,0"), "shortcut": (LAYERS, "from=-2"),
    "scale_channels": (net(6, 5) + conv(4) + "[avgpool]\n", "from=0"),
    "region": (net(6, 4) + conv(14), "anchors=1,2,3,4 num=2 classes=2"),
    "yolo": (net(6, 4) + conv(14), "mask=0,1 anchors=1,2,3,4,5,6 num=3 classes=2")}
"""For each section of Darknet the layers before it, and options that are right."""
LINES = ("", "[net]\nwidth=3", "[conv]\n[net]", "width=1\n[net]", "[net]\nwidth\n[conv]",
         "[net]\n[net]", "[net]\n[lstm]", "[net]\n[lstm] x", "[net\n", "[net]\n[conv]\0",
         "[net]\n[conv]", "[net]\n[YOLO]", BODY + "[empty]", BODY + "[conv]\nkk=1\nFilters=1")
UNFIT = (
    section("conv", filters=2147483647, groups=1), section("conv", size=9),
    section("conv", size=3, dilation=2), section("reorg", stride=2),
    conv(4) + conv(4, 3, 2) + section("route", layers="-1,-2"),
    conv(4) + conv(4, 3, 2) + section("upsample", stride=4) + section("shortcut", from_="0"),
    head(1) + conv(4),
    head(1) + section("route", layers="-2") + head(2))
"""Layers that do not fit those before them, which are of 3x8x8."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an empty folder the current one, so that messages hold the names of files alone."""
    monkeypatch.chdir(tmp_path)


def test_networks_of_darknet(folder: None, golden: Golden) -> None:
    cfg, weights = Path("n.cfg"), Path("n.weights")

    def read(text: str, content: bytes = struct.pack("<3iq", 0, 2, 0, 0)) -> object:
        cfg.write_text(text)
        weights.write_bytes(content)
        return load_darknet(cfg, weights)

    def options() -> Iterator[Case]:
        for kind, (before, right) in SECTIONS.items():
            for key, value in [(key, value) for key in sorted(KEYS[kind]) for value in (
                    "", "x", "-1", "0", "1", "3", "7", "1.5", "2147483648", None)]:
                lines = [each for each in right.split() if each.split("=")[0] != key]
                lines += [f"{key}={value}"] * (value is not None)
                yield (f"{kind} {key}", f"[{kind}] {key}={value}",
                       partial(read, "\n".join([f"{before}[{kind}]", *lines])))

    golden.table("errors.txt", "darknet: options", kinds(options()))
    golden.table("errors.txt", "darknet: layers", kinds(
        ("", " ".join(layers.split()), partial(read, net(8, 8) + layers)) for layers in UNFIT))
    golden.table("errors.txt", "darknet: files", kinds([
        *(("", repr(text), partial(read, text)) for text in LINES),
        *(("", f"weights of {len(content)} bytes", partial(read, BODY + "[conv]", content))
          for content in (b"", bytes(19), bytes(24), bytes(99), bytes(48), b"version https"))]))
