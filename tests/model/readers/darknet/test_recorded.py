"""The reader of Darknet's networks is recorded for every option at and beyond its bounds."""

from __future__ import annotations

import itertools
import re
import string
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gossamer.errors import ModelError
from gossamer.model.graph import Graph
from gossamer.model.readers.darknet.cfg import Option, Section, read_sections, unknown_keys
from gossamer.model.readers.darknet.reader import load_darknet
from gossamer.model.readers.darknet.weights import WeightsFile
from tests.model.readers.darknet.networks import ANCHORS, NETWORKS, conv, net, section
from tests.recorded import Recorded
from tests.recorded.graphs import brief, graph_text, outcome

NUMBERS = ("", "x", "-1", "0", "1", "2", "3", "4", "5", "1.5", "2147483648")
"""Texts that each option with a number is given."""
BODY = net(6, 5, 4)
PICTURE = net(4, 6, 3)
HEAD = "mask=0,1\nanchors=1,2, 3,4, 5,6\nnum=3\nclasses=2\n"
BASES: dict[str, tuple[str, dict[str, str]]] = {
    "convolutional": (BODY, {"filters": "4", "size": "3", "stride": "1", "pad": "1"}),
    "connected": (BODY, {"output": "3", "activation": "linear"}),
    "maxpool": (BODY, {"size": "2", "stride": "2"}),
    "local_avgpool": (BODY, {"size": "3", "stride": "2"}),
    "avgpool": (BODY, {}),
    "upsample": (BODY, {"stride": "2"}),
    "reorg": (net(4, 6, 8), {"stride": "2"}),
    "reorg3d": (net(4, 6, 3), {"stride": "2"}),
    "route": (BODY + conv(2) + conv(4), {"layers": "-1,0"}),
    "shortcut": (BODY + conv(2) + conv(4), {"from": "-2"}),
    "scale_channels": (BODY + conv(4) + section("avgpool"), {"from": "0"}),
    "sam": (BODY + conv(4) + conv(4), {"from": "0"}),
    "dropout": (BODY + conv(2), {"probability": ".5"}),
    "softmax": (BODY, {"groups": "1"}),
    "activation": (BODY, {"activation": "relu"}),
    "batchnorm": (BODY, {}),
    "cost": (BODY + conv(2), {"type": "sse"}),
    "crop": (BODY, {"crop_height": "3", "crop_width": "4"}),
    "region": (net(6, 4) + conv(14), {"anchors": "1,2, 3,4", "num": "2", "classes": "2",
                                      "coords": "4"}),
    "yolo": (net(6, 4) + conv(14), {"mask": "0,1", "anchors": "1,2, 3,4, 5,6", "num": "3",
                                    "classes": "2"}),
}
"""For each section the layers before it, and its options."""
NUMBERED: dict[str, str] = {
    "convolutional": "filters size stride stride_x stride_y pad padding groups dilation flipped "
                     "batch_normalize antialiasing binary xnor bin_output share_index "
                     "assisted_excitation coordconv cbn dontload dontloadscales numload",
    "connected": "output batch_normalize dontload dontloadscales numload",
    "maxpool": "size stride stride_x stride_y padding antialiasing maxpool_depth",
    "local_avgpool": "size stride padding", "upsample": "stride scale reverse",
    "reorg": "stride reverse extra flatten", "reorg3d": "stride reverse",
    "route": "layers groups group_id", "shortcut": "from alpha beta",
    "scale_channels": "from scale_wh", "sam": "from",
    "softmax": "groups temperature spatial tree", "crop": "crop_height crop_width noadjust",
    "region": "num classes coords softmax background tree",
    "yolo": "num classes scale_x_y new_coords mask beta_nms",
}
"""For each section its options with numbers."""
OTHERS: tuple[tuple[str, dict[str, str | None]], ...] = (
    *(("activation", {"activation": name}) for name in (
        "linear", "leaky", "mish", "swish", "relu", "logistic", "relu6", "tanh", "hard_mish",
        "elu", "selu", "gelu", "ramp", "loggy", "stair", "")),
    *(("convolutional", {"activation": name}) for name in ("linear", "relu", "stair")),
    *(("convolutional", {"dilation": dilation, "size": size, "pad": pad, "padding": padding})
      for dilation in "23" for size in "1235" for pad, padding in (("1", None), ("0", "1"))),
    *(("convolutional", {"size": size, "pad": None, "padding": padding})
      for size in "24567" for padding in "01"),
    *(("convolutional", {"groups": groups, "filters": filters, "flipped": flipped,
                         "batch_normalize": norm})
      for groups in "24" for filters in "468" for flipped in "01" for norm in "01"),
    *((kind, {"size": size, "stride": stride, "padding": padding})
      for kind in ("maxpool", "local_avgpool") for size in "123567" for stride in "123"
      for padding in (None, "0", "1", "2", "3", "4", "6", "8")),
    *(("route", {"layers": layers, "groups": groups, "group_id": group})
      for layers in ("0", "1", "-1", "-2", "-3", "2", "0,1", "-1,-1", "0,1,-1", ",", "1.5", "a")
      for groups, group in ((None, None), ("2", "0"), ("2", "1"), ("2", "2"), ("3", "0"))),
    *(("shortcut", {"from": layers, "activation": name})
      for layers in ("0", "1", "-1", "-3", "2", "0,1", "0,0,1", ",") for name in (None, "relu")),
    *(("shortcut", {"weights_type": name}) for name in ("none", "per_channel")),
    *((kind, {"from": index, "activation": name, "scale_wh": flag})
      for kind in ("scale_channels", "sam") for index in ("-3", "-2", "-1", "0", "1", "2")
      for name, flag in ((None, None), ("relu", "1"))),
    *(("softmax", {"groups": groups, "temperature": temperature})
      for groups in "2347" for temperature in (None, "2", "0", "-1", ".5")),
    *(("yolo", {"mask": mask, "classes": classes, "num": num, "anchors": anchors})
      for mask, classes in (("0,1", "2"), ("2,0", "2"), ("1,3", "2"), ("-1,0", "2"), (None, "2"),
                            ("0", "9"), ("0,1,2", "2"))
      for num in ("2", "3", None) for anchors in ("1,2,3,4,5,6", "1,2,3", "1,2,3,4,5", None)),
    *(("yolo", {"nms_kind": name, "beta_nms": beta, "scale_x_y": scale})
      for name in ("default", "greedynms", "diounms", "other")
      for beta, scale in ((None, "0"), ("0", "100"), ("100", "101"), ("101", "1"), ("1,2", "1"))),
    *(("crop", {"crop_height": height, "crop_width": width})
      for height in "456" for width in "567"),
    *(("region", {"num": num, "classes": classes, "anchors": anchors, "softmax": flag})
      for num, classes in (("1", "9"), ("2", "2"), ("2", "3"))
      for anchors in ("1,2,3,4", "1,2", "1,2,3,4,5,6", None) for flag in "01"),
)
"""Options that are drawn together."""


def text_of(before: str, kind: str, options: dict[str, str]) -> str:
    lines = "".join(f"{key}={value}\n" for key, value in options.items())
    return f"{before}[{kind}]\n{lines}"


def read(folder: Path, cfg: str, *, missing: int = 0, revision: int = 0, version: int = 2) -> Graph:
    """Reads a network with as many weights as it needs, less those that are to be missing; they
    are counted from 1 on, so that each has another value."""
    path, header = folder / "n.cfg", struct.pack("<3iq", 0, version, revision, 0)
    path.write_text(cfg)
    weights = path.with_suffix(".weights")
    weights.write_bytes(header)
    try:
        return load_darknet(path, weights)
    except ModelError as error:
        needed = re.search(r"needs (\d+), so", str(error))
        if needed is None:
            raise
    count = int(needed[1]) - missing
    weights.write_bytes(header + np.arange(1, count + 1, dtype="<f4").tobytes())
    return load_darknet(path, weights)


def network_text(graph: Graph) -> str:
    return graph_text(graph, names=True)


def _cases() -> Iterator[tuple[str, str]]:
    for kind, (before, options) in BASES.items():
        yield kind, text_of(before, kind, options)
        yield f"{kind} alone", text_of(net(6, 5, 4), kind, options)
        for key in options:
            without = {name: value for name, value in options.items() if name != key}
            yield f"{kind} without {key}", text_of(before, kind, without)
        for key in NUMBERED.get(kind, "").split():
            for number in NUMBERS:
                yield f"{kind} {key}={number}", text_of(before, kind, {**options, key: number})
        yield f"{kind} then", text_of(before, kind, options) + conv(2, 1)
    for kind, others in OTHERS:
        before, options = BASES[kind]
        changed = {key: value for key, value in {**options, **others}.items() if value is not None}
        told = " ".join(f"{key}={value}" for key, value in others.items())
        yield f"{kind} {told}", text_of(before, kind, changed)


@pytest.mark.slow
def test_every_option(tmp_path: Path, recorded: Recorded) -> None:
    recorded("darknet_options", {
        case: outcome(lambda cfg=cfg: network_text(read(tmp_path, cfg)), tmp_path, 110)
        for case, cfg in _cases()})


def test_networks(tmp_path: Path, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    nets = {"inputs": "[net]\ninputs=5\n", "both": "[net]\ninputs=5\nheight=2\nwidth=2\n",
            **{f"{channels}x{height}x{width}": net(width, height, channels)
               for channels in (1, 2, 3, 4) for height, width in ((2, 4), (1, 1))},
            "large": net(16385, 1, 3), "largest": net(16384, 1, 3),
            "boxed": net(4, 4, letter_box=1),
            "unboxed": net(4, 4, letter_box=0), "fork": net(4, 4, mosaic=1)}
    ends = {"connected": text_of("", "connected", {"output": "3"}), "conv": conv(3),
            "yolo": conv(21, 1) + f"[yolo]\nmask=0,1,2\n{ANCHORS}\nnum=6\nclasses=2\n",
            "two": "".join(
                f"{conv(14, 1)}[yolo]\nmask={mask}\nanchors={anchors}\nnum=3\nclasses=2\n"
                + section("route", layers="-2") for mask, anchors in (
                    ("0,1", "1,2,3,4,5,6"), ("1,2", "1,2,3,4,5,7"), ("0,2", "1,2,3,4,5,6"))),
            "classes": conv(14, 1) + f"[yolo]\n{HEAD}" + section("route", layers="-2")
            + conv(16, 1) + f"[yolo]\n{HEAD.replace('classes=2', 'classes=3')}",
            "flat": section("connected", output=4) + section("softmax") + section("softmax")
            + conv(2, 1) + section("connected", output=2, batch_normalize=1),
            "nothing": section("dropout"), "empty": ""}
    for name, start in nets.items():
        for end, layers in ends.items():
            found[f"{name} {end}"] = outcome(
                lambda cfg=start + layers: network_text(read(tmp_path, cfg)), tmp_path, 170)
    for name, cfg in NETWORKS.items():
        for missing in (0, 1, -1):
            found[f"{name} {missing}"] = outcome(
                lambda cfg=cfg, missing=missing: network_text(read(tmp_path, cfg, missing=missing)),
                tmp_path, 170)
    for height, width in ((4, 4), (4, 6), (5, 4), (4, 5), (6, 6)):
        for down, right in ((1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)):
            pooled = (net(width, height, 2) + conv(2) + section(
                "maxpool", size=1, stride_y=down, stride_x=right) + section("shortcut", from_=0))
            found[f"shortcut {height}x{width} by {down}x{right}"] = outcome(
                lambda cfg=pooled: network_text(read(tmp_path, cfg)), tmp_path, 170)
    for channels, height, width in ((4, 4, 6), (8, 6, 6), (9, 3, 3), (18, 6, 3), (2, 6, 6)):
        start = net(width, height, channels)
        for kind, stride, reverse in itertools.product(("reorg", "reorg3d"), (1, 2, 3), (0, 1)):
            moved = start + section(kind, stride=stride, reverse=reverse)
            found[f"{kind} {stride} {reverse} of {channels}x{height}x{width}"] = outcome(
                lambda cfg=moved: network_text(read(tmp_path, cfg)), tmp_path, 170)
    sizes = net(6, 5, 2) + section("maxpool", size=2, stride=1, padding=0) + conv(2)
    for layers in ("0,1", "-1,-2", "-1,1"):
        joined = sizes + section("maxpool", size=1, stride=2) + section("route", layers=layers)
        found[f"route {layers} of sizes"] = outcome(
            lambda cfg=joined: network_text(read(tmp_path, cfg)), tmp_path, 170)
    batchnorm = net(2, 2, 2) + section("batchnorm") + section("connected", output=3)
    for revision in (0, 1):
        for version in (0, 1, 2, 3, 1000, 1001):
            found[f"batchnorm {revision} {version}"] = outcome(
                lambda revision=revision, version=version: network_text(
                    read(tmp_path, batchnorm, revision=revision, version=version)), tmp_path, 170)
            found[f"letter box {revision} {version}"] = outcome(
                lambda revision=revision, version=version: network_text(read(
                    tmp_path, PICTURE + ends["yolo"], revision=revision, version=version)),
                tmp_path, 170)
    recorded("darknet_networks", found)


def test_names_of_classes(tmp_path: Path, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    networks = {"flat": PICTURE + section("connected", output=3),
                "boxes": net(2, 2) + conv(14, 1) + f"[yolo]\n{HEAD}"}
    for names in ("a\nb\nc\n", "a\nb\n", "a\n\nb\nc", "a\nb\nc\n\n\n", "a\nb\nc\nd", "",
                  "\na\nb\nc", "\ufeffa\nb\nc"):
        (tmp_path / "n.names").write_text(names)
        for kind, cfg in networks.items():
            def text(cfg: str = cfg) -> str:
                graph = read(tmp_path, cfg)
                return f"{graph.metadata.classes} {graph.warnings}"
            found[f"{kind} {names!r}"] = outcome(text, tmp_path, 250)
    cfg, other = tmp_path / "n.cfg", tmp_path / "other.txt"
    for names in ("p\nq\n", "p\n"):
        other.write_text(names)
        found[f"given {names!r}"] = outcome(lambda: str(load_darknet(
            cfg, cfg.with_suffix(".weights"), other).metadata.classes), tmp_path)
    recorded("darknet_names", found)


def test_numbers_of_options(recorded: Recorded) -> None:
    texts = ("", "0", "1", "-1", "+2", "3", "2147483647", "2147483648", "-2147483647",
             "-2147483648", "123456789012345", "1234567890123456", "1.0", "1.5", ".5", "5.", ".",
             "1e2", "1e", "1e10", "1E-12", "1e123", "a", "1,2", "1,,2", ",", "1, 2,", "1;2", "--1",
             "1 2", "0" * 39, "0" * 40, "nan", "inf", "1,a")
    found: dict[str, str] = {}
    for text in texts:
        part = Section(Path("n.cfg"), "convolutional", 3, 7, {"k": Option(text, 9)})
        calls = {
            "integer": lambda part=part: part.integer("k"),
            "from 0": lambda part=part: part.integer("k", 1, least=0),
            "from 2": lambda part=part: part.integer("k", least=2),
            "flag": lambda part=part: part.flag("k"),
            "number": lambda part=part: part.number("k", 0.5),
            "within": lambda part=part: part.number("k", 0.5, 1, 100),
            "numbers": lambda part=part: part.numbers("k"),
            "integers": lambda part=part: part.integers("k"),
            "refuse": lambda part=part: part.refuse("j", "k")}
        for name, call in calls.items():
            found[f"{name} {text}"] = outcome(lambda call=call: str(call()))
    absent = Section(Path("n.cfg"), "convolutional", 3, 7)
    for name, call in {
            "integer": lambda: absent.integer("k"), "default": lambda: absent.integer("k", 5),
            "flag": lambda: absent.flag("k"), "number": lambda: absent.number("k", 0.5),
            "numbers": lambda: absent.numbers("k"), "integers": lambda: absent.integers("k"),
            "text": lambda: absent.text("k", "d"), "refuse": lambda: absent.refuse("k"),
            "source": lambda: absent.source}.items():
        found[f"{name} absent"] = outcome(lambda call=call: str(call()))
    recorded("darknet_numbers", found)


def test_lines(tmp_path: Path, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    long, path = "x" * 39, tmp_path / "n.cfg"

    def sections() -> str:
        read = read_sections(path)
        parts = [(part.source, [(key, option.text, option.line)
                                for key, option in part.options.items()]) for part in read]
        return f"{parts} {unknown_keys(read)}"

    for text in ("", "\n", "[net]", "[net]\n", "[net]\n[conv]", "[network]\n[max]\n[avg]\n[soft]",
                 "[net]\n[net]", "[conv]\n[net]", "width=1", "width=1\n[net]", "[net]\nwidth\n",
                 "[net]\nwi dth = 1 2\n[conn]\n out put=3 # text\n", "[net] # text\n[conv] ; text",
                 "[net]\n=1\n[conv]\na==b", "[net]\nwidth=1\nwidth=2\n[conv]", "[net]\n[lstm]",
                 "[net]\n[lstm] x", "[net]\n[convolution]", "[net]\n[Convolutional]",
                 "[net]\n[zzz]",
                 "[net", "[net]\n[conv", "[net]\n[conv] x", f"[net]\n[{long}]", f"[net]\n[{long}x]",
                 f"[net]\n{long}", f"[net]\n{long}yz", f"{long}yz", "\ufeff[net]\n[conv]",
                 "[net]\n[conv]\0", "[net]\n#[x]\n;[y]\n[conv]\nfilters=2;3", "[net]\n[ conv ]",
                 "[net]\nfiltres=1\n[conv]\nfiltres=2\nclip=1\nFilters=3\n[maxpool]\nqq=1\n",
                 "[net]\n[conv]\n" + "".join(f"k{i}=1\n" for i in range(5)),
                 "[net]\n[conv]\n" + "".join(f"k{i}=1\n" for i in range(6)),
                 "[net]\n[conv]\n" + "".join(f"k{i}=1\n" for i in range(7))):
        path.write_bytes(text.encode())
        found[repr(text)] = outcome(sections, tmp_path, 400)
    recorded("darknet_lines", found)


def test_headers(tmp_path: Path, recorded: Recorded) -> None:
    path, found = tmp_path / "n.weights", {}
    part = Section(Path("n.cfg"), "convolutional", 3, 7)

    def taken(counts: tuple[int, ...]) -> str:
        file = WeightsFile(path)
        taken = [file.take(part, count).sum() for count in counts]
        file.finish(Path("n.cfg"), ["notice"] if len(counts) > 2 else [])
        return f"{taken} {file.revision} {file.transposed}"

    for major, minor in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (0, 1000), (0, 1001), (1000, 0),
                         (1001, 0), (-1, 2), (-1, 12)):
        for count in range(26):
            path.write_bytes(struct.pack("<3iq6x", major, minor, 1, 0)[:count])
            found[f"{major}.{minor} {count} bytes"] = outcome(lambda: taken(()), tmp_path)
    for data in (string.printable.encode(), b"a" * 11 + b"\0" * 9, b"a" * 12 + b"\0" * 8, b"a" * 40,
                 b"a" * 5, b"\0", b"version https"):
        path.write_bytes(data)
        found[f"text {data[:20]!r}"] = outcome(lambda: taken(()), tmp_path)
    path.write_bytes(struct.pack("<3iq", 0, 2, 0, 0) + np.arange(6, dtype="<f4").tobytes())
    for counts in ((6,), (5,), (7,), (2, 4), (3, 4), (4, 1), (2, 2, 2), (2, 2, 3), (2, 2, 1),
                   (2**24,), (2**24 + 1,), (2**40,), (2**40 + 1,), (0, 6), (6, 0)):
        found[f"takes {counts}"] = outcome(lambda counts=counts: taken(counts), tmp_path, 300)
    recorded("darknet_headers", found)


def test_brief_texts_differ() -> None:
    assert brief("a" * 200) != brief("a" * 199 + "b")
