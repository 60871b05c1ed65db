"""Graphs for the rewrites of channels, parallel convolutions, channels-last images, tokens and
pixels: see patterns.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.model.graph import ValueInfo
from tests.model.graph_builder import CHANNELS, SIZE
from tests.model.passes.patterns import READERS, Family, Options, Pattern, weights

_SLICE = {"starts": (1,), "ends": (4,), "axes": (1,), "steps": (1,)}


def shuffle(build: Pattern, o: Options) -> None:
    parted = build.add("reshape", [build.pool("x")], shape=o["parted"])
    turned = build.add("transpose", [parted], permutation=o["permutation"])
    mixed = build.add("reshape" if o["end"] == "reshape" else "flatten", [turned],
                      **({"shape": o["joined"]} if o["end"] == "reshape" else {"axis": 1}))
    build.also_read(mixed, o["reader"])
    if o["part"] == "none":
        build.output(build.apply("neg", mixed))
    elif isinstance(o["part"], dict):
        attributes = dict(o["part"])
        inputs = [mixed]
        if o["ends"] == "computed":
            inputs += [build.build.constant("starts", np.array(attributes.pop("starts"))),
                       build.build.constant("ends", np.array(attributes.pop("ends"))),
                       build.build.constant("axes", np.array(attributes.pop("axes")))]
            attributes.pop("steps", None)
        build.output(build.apply("neg", build.add("slice", inputs, **attributes)))
    else:
        axis, sizes = o["part"]
        build.add("split", [mixed], axis=axis, sizes=sizes)
        build.graph.nodes[-1].outputs = ["left", "" if o["ends"] == "computed" else "right"]
        build.output(build.apply("neg", "left"))
        if o["ends"] != "computed":
            build.output(build.apply("exp", "right"))


def chosen(build: Pattern, o: Options) -> None:
    channels = o["channels"]
    x = build.conv("x", out=channels) if channels != CHANNELS else build.pool("x")
    if o["rank"] == 3:
        x = build.add("reshape", [x], shape=(0, channels, -1))
    indices = build.build.constant("indices", np.array(o["indices"]))
    value = build.add("gather", [x, indices], axis=o["axis"])
    build.also_read(value, o["reader"])
    count = np.size(o["indices"])
    groups = count if o["groups"] else 1
    if o["rank"] == 3:
        build.output(build.apply("neg", value))
        return
    weight = weights(build, o["weight"], 3 * groups if o["groups"] else 3,
                     count // groups, o["size"], o["size"])
    result = build.build.conv2d(value, weight, build.constant(3 * groups if o["groups"] else 3),
                                groups=groups, **build._names(""))
    if o["by"] == "two":
        build.output(build.conv(value, into=count, size=1))
    elif o["by"] == "pool":
        build.output(build.pool(value))
    build.output(result)


def dead_channels(build: Pattern, o: Options) -> None:
    count = o["channels"]
    gone = np.arange(count) >= count - o["dead"]
    product = o["layer"] != "conv"
    x = build.add("reshape", ["x"], shape=(0, -1)) if product else "x"
    rows = weights(build, "any", *((count, CHANNELS * SIZE * SIZE) if product else (
        count, CHANNELS, 3, 3)))
    if "filters" in o["which"]:
        build.graph.constants[rows][gone] = 0
    bias = build.constant(count) if o["bias"] == "any" else build.numbers(
        np.zeros(count) if o["bias"] == "zero" else np.where(gone, {
            "negative": -1.0, "infinite": np.inf}[o["bias"]], 0.5))
    if product:
        if o["layer"] == "plain gemm":
            build.graph.constants[rows] = build.graph.constants[rows].T.copy()
        value = build.build.gemm(x, rows, bias, trans_b=o["layer"] == "gemm", **build._names(""))
    else:
        value = build.build.conv2d(x, rows, bias, pads=(1,) * 4, **build._names(""))
    build.also_read(value, o["reader"])
    if o["function"] != "none":
        value = build.apply(o["function"], value)
    if o["operand"] == "value":
        value = build.apply("add", value, build.conv("x", out=count) if not product else
                            build.add("exp", [value]))
    for pad in o["depthwise"] if not product else ():
        value = build.conv(value, into=count, out=count, groups=count, size=3 if pad else 1,
                           pad=pad)
        value = build.apply("relu", value)
    for index in range(o["readers"]):
        shape = (4, count) if product else (4, count // o["groups"], 1, 1)
        columns = build.constant(*shape)
        if "columns" in o["which"] and o["groups"] == 1:
            build.graph.constants[columns][:, gone] = 0
        if product:
            result = build.build.gemm(value, columns, build.constant(4), trans_b=True,
                                      **build._names(""))
        else:
            result = build.build.conv2d(value, columns, build.constant(4), groups=o["groups"],
                                        pads=(o["pad"],) * 4, **build._names(""))
        build.output(build.then(result, o["then"]) if index == 0 else result)


def parallel(build: Pattern, o: Options) -> None:
    """Convolutions of one value, or the value itself, whose results are added."""
    x = build.pool("x")

    def branch(kind: str, index: int) -> str:
        if kind == "value":
            return x
        if kind == "other value":
            return build.conv("x")
        if kind == "mean":
            return build.mean("x")
        if kind == "constant":
            return build.constant(CHANNELS, 1, 1)
        size, groups, strides, dilation, pad, weight = {
            "3x3": (3, 1, 1, 1, 1, "any"), "1x1": (1, 1, 1, 1, 0, "any"),
            "5x5": (5, 1, 1, 1, 2, "any"), "groups": (3, 2, 1, 1, 1, "any"),
            "depthwise": (3, CHANNELS, 1, 1, 1, "any"), "dilated": (3, 1, 1, 2, 2, "any"),
            "strided": (3, 1, 2, 1, 1, "any"), "strided 1x1": (1, 1, 2, 1, 0, "any"),
            "strided 1x1 padded": (1, 1, 2, 1, 1, "any"), "one more": (2, 1, 1, 1, 1, "any"),
            "integers": (3, 1, 1, 1, 1, "integers"), "signs": (3, 1, 1, 1, 1, "scaled signs"),
            "signs 1x1": (1, CHANNELS, 1, 1, 0, "scaled signs"), "zeros": (3, 1, 1, 1, 1, "zeros"),
            "infinite": (3, 1, 1, 1, 1, "infinite"), "no bias": (3, 1, 1, 1, 1, "any"),
            "relu": (3, 1, 1, 1, 1, "any"), "automatic": (3, 1, 1, 1, 1, "any"),
            "read twice": (3, 1, 1, 1, 1, "any")}[kind]
        expression: dict[str, Any] = {}
        if kind == "relu":
            expression["epilogue"] = Expression(2, (ExpressionStep("add", (0, 1)),
                                                    ExpressionStep("relu", (2,))))
        y = build.build.conv2d(
            x, weights(build, weight, CHANNELS, CHANNELS // groups, size, size),
            "" if kind == "no bias" else build.constant(CHANNELS), groups=groups,
            strides=(strides,) * 2, dilations=(dilation,) * 2, pads=(pad,) * 4,
            **build._names(""), **expression)
        if kind == "automatic":
            build.graph.nodes[-1].attributes["auto_pad"] = "SAME_UPPER"
        if kind == "read twice":
            build.output(build.apply("exp", y))
        return y

    total = first = branch(o["first"], 0)
    for index, kind in enumerate((o["second"], *o["more"]), 1):
        value = first if kind == "again" else branch(kind, index)
        factor = {"number": lambda: build.scalar(0.5), "channels": lambda: build.constant(
            CHANNELS, 1, 1), "row": lambda: build.constant(SIZE)}.get(o["factor"])
        if factor is not None:
            value = build.apply(o["times"], value, factor())
        if o["norm"]:
            value = build.norm(value)
        total = build.apply(o["sum"], total, value)
        if index == 1:
            build.also_read(total, o["reader"])
    build.output(build.then(total, o["then"]))


FAMILIES = {
    "shuffle": Family(shuffle, {
        "parted": ((0, 2, 2, SIZE, SIZE), (0, 4, 1, SIZE, SIZE), (0, 2, 2, 1, SIZE * SIZE),
                   (-1, 1, 2, SIZE, SIZE), (0, 2, 2, SIZE * SIZE, 1)),
        "permutation": ((0, 2, 1, 3, 4), (0, 1, 2, 3, 4), (0, 2, 1, 4, 3), None),
        "joined": ((0, CHANNELS, SIZE, SIZE), (0, CHANNELS, SIZE * SIZE, 1), (-1, 2, SIZE, SIZE)),
        "end": ("reshape", "flatten"), "reader": READERS,
        "part": ("none", (1, (1, 3)), (-3, (2, 2)), (2, (2, 3)), _SLICE, {**_SLICE, "steps": (2,)},
                 {**_SLICE, "axes": (-3,)}, {**_SLICE, "axes": (2,)}, {**_SLICE, "axes": (0,)},
                 {"starts": (0, 1), "ends": (1, 3)}, {"starts": (-3,), "ends": (9,), "axes": (1,)},
                 {**_SLICE, "starts": (3,), "ends": (0,), "steps": (-1,)},
                 {"starts": (0,), "ends": (1,)}), "ends": ("written", "computed")}, 30),
    "chosen channels": Family(chosen, {
        "indices": ((2, 0, 3), (1, 3), (2,), (-1, 0), (3, -4, 0), (0, 0, 2), (1, 2, 3, 0, 1),
                    ((0, 1), (2, 3))),
        "axis": (1, -3, 2, 0), "rank": (4, 3), "channels": (CHANNELS, 6, 7), "size": (1, 3),
        "groups": (False, True), "weight": ("any", "signs", "scaled signs"), "reader": READERS,
        "by": ("one", "two", "pool")}, 24, {"chooses_by_weights": True}),
    "dead channels": Family(dead_channels, {
        "layer": ("conv", "gemm", "plain gemm"), "channels": (16, 9, 8, 1),
        "dead": (9, 0, 1, 7, 8, 16), "which": ("filters", "columns", "filters columns"),
        "bias": ("any", "zero", "negative", "infinite"), "function": ("relu", "none", "sign"),
        "operand": ("constant", "value"), "depthwise": ((), (0,), (1,), (0, 1)),
        "readers": (1, 2), "groups": (1, 2), "pad": (0, 1), "reader": READERS,
        "then": ("none", "sign", "round", "pool")}, 60),
    "parallel": Family(parallel, {
        "first": ("3x3", "1x1", "strided", "5x5", "groups", "depthwise", "dilated", "automatic",
                  "infinite", "relu"),
        "second": ("1x1", "value", "3x3", "5x5", "groups", "depthwise", "dilated", "strided 1x1",
                   "strided 1x1 padded", "strided", "one more", "integers", "signs", "signs 1x1",
                   "zeros", "infinite", "no bias", "relu", "automatic", "read twice",
                   "other value", "mean", "constant"),
        "more": ((), ("value",), ("3x3", "1x1"), ("other value",), ("other value", "constant"),
                 ("again",), ("value", "value"), ("1x1", "again", "again")),
        "factor": ("none", "number", "channels", "row"), "times": ("mul", "div"),
        "norm": (False, True), "sum": ("add", "sub", "mul"), "reader": READERS,
        "then": ("none", "sign", "round", "relu", "conv")}, 70),
    "scaled parallel": Family(parallel, {
        "first": ("3x3", "1x1", "depthwise"), "second": ("1x1", "value", "3x3", "other value"),
        "more": ((), ("value",), ("again",)), "factor": ("channels", "number", "row"),
        "times": ("mul", "div"), "norm": (False, True), "sum": ("add", "sub"),
        "reader": READERS, "then": ("none", "sign")}, 24),
}


LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def channels_last(build: Pattern, o: Options) -> None:
    build.graph.inputs[0] = ValueInfo("x", (None, CHANNELS, SIZE, SIZE + 1))
    last = build.add("transpose", [build.apply("exp", "x")], permutation=o["turn"])
    sizes = [1, CHANNELS, SIZE, SIZE + 1]
    shape = [sizes[axis] for axis in o["turn"] or (3, 2, 1, 0)]
    depth = shape[3]
    op = o["op"]
    if op == "product":
        last = build.add("matmul", [last, build.constant(*o["weight"] or (depth, 3))])
        depth = 3
    elif op == "norm":
        parameters = [build.constant(depth), build.constant(depth)]
        last = build.add("layer_norm", [last, *parameters], axes=o["axes"], epsilon=1e-5,
                         centred=True)
    elif op == "reduce":
        last = build.add("reduce", [last], kind="sum", axes=o["axes"], keepdims=o["keep"])
    elif op in ("softmax", "flat softmax"):
        last = build.add("softmax", [last], axis=o["axis"], log=False,
                         flatten=op == "flat softmax")
    elif op == "split":
        build.add("split", [last], axis=o["axis"], sizes=(1, shape[o["axis"]] - 1))
        build.graph.nodes[-1].outputs = ["left", "right"]
        last = build.add("concat", ["right", "left", last] if o["twice"] else ["right", "left"],
                         axis=o["axis"])
    elif op == "constant":
        last = build.apply("mul", last, build.constant(*o["shape"]))
    elif op == "own input":
        build.build.input("z", (None, *shape[1:]))
        last = build.apply("add", last, "z")
    else:
        last = build.apply("neg", last)
    build.also_read(last, o["reader"])
    if o["back"] is None or (op == "reduce" and not o["keep"]):
        build.output(build.apply("neg", last))
    else:
        build.output(build.apply("neg", build.add("transpose", [last], permutation=o["back"])))


def tokens(build: Pattern, o: Options) -> None:
    """An image becomes rows of tokens, these are multiplied, and become an image again."""
    build.graph.inputs[0] = ValueInfo("x", (None, CHANNELS, SIZE, o["width"]))
    pixels = SIZE * o["width"]
    x = build.pool("x")
    if o["to"] == "reshape":
        columns = build.add("reshape", [x], shape=o["columns"] or (0, CHANNELS, pixels))
    elif o["to"] == "flatten":
        columns = build.add("squeeze", [build.add("reshape", [x], shape=(0, CHANNELS, 1, pixels))],
                            axes=(2,))
    else:
        columns = build.apply("neg", build.add("reshape", [x], shape=(0, CHANNELS, pixels)))
    value = build.add("transpose", [columns], permutation=o["there"])
    build.also_read(columns, o["reader"])
    value = build.apply("exp", value)
    value = build.add("transpose", [value], permutation=o["back"])
    build.output(build.add("reshape", [value], shape=o["shape"] or (
        0, CHANNELS, SIZE, o["width"])))


def turned_product(build: Pattern, o: Options) -> None:
    x = build.pool("x")
    if o["rank"] == 3:
        x = build.add("reshape", [x], shape=(0, CHANNELS * SIZE, SIZE))
    last = (0, 2, 1) if o["rank"] == 3 else (0, 1, 3, 2)
    turned = build.add("transpose", [x], permutation=last if o["permutation"] == "last" else
                       tuple(range(o["rank"])))
    other: dict[str, Any] = {
        "value": lambda: turned, "second": lambda: build.add(
            "transpose", [build.apply("exp", x)], permutation=last),
        "shape": lambda: build.add("cast", [build.add(
            "shape", ["x"], start=1, end=2)], dtype="float32")}
    operand = build.constant(*o["number"]) if isinstance(o["number"], tuple) else (
        other[o["number"]]())
    scaled = build.apply(o["function"], *((operand, turned) if o["swapped"] else (
        turned, operand)))
    build.also_read(scaled, o["reader"])
    if o["by"] == "matmul":
        build.output(build.add("matmul", [x, scaled]))
    elif o["by"] == "left":
        build.output(build.add("matmul", [scaled, x]))
    else:
        build.output(build.apply("exp", scaled))


def pixels(build: Pattern, o: Options) -> None:
    """The gates of a squeeze-and-excite layer, which are computed by products of matrices."""
    if o["mean"] == "kept":
        mean = build.add("reshape" if o["to"] == "reshape" else "flatten", [build.mean("x")],
                         **({"shape": (-1, CHANNELS)} if o["to"] == "reshape" else {"axis": 1}))
    elif o["mean"] == "pool":
        mean = build.add("reshape", [build.pool("x")], shape=(-1, CHANNELS))
    elif o["mean"] == "input":
        mean = build.build.input("r", (None, CHANNELS))
    elif o["mean"] == "rank 3":
        mean = build.add("reduce", [build.add("reshape", ["x"], shape=(0, CHANNELS, -1))],
                         kind="mean", axes=(2,), keepdims=False)
    else:
        mean = build.add("reduce", ["x"], kind="mean", axes=o["mean"], keepdims=False)
    build.also_read(mean, o["reader"])
    value = mean
    for index in range(o["products"]):
        weight = build.constant(*((3, 3) if 0 < index < o["products"] - 1 else (
            (3, CHANNELS) if index == 0 else (CHANNELS, 3)) if o["products"] > 1 else (
            CHANNELS, CHANNELS)))
        if not o["transposed"]:
            build.graph.constants[weight] = build.graph.constants[weight].T.copy()
        if o["weight"] == "value":
            weight = build.add("mul", [weight, weight])
            build.graph.nodes[-1].op = "elementwise"
            build.graph.nodes[-1].attributes["expression"] = apply("mul")
        elif o["weight"] == "input":
            build.build.input(f"w{index}", build.graph.constants[weight].shape)
            weight = f"w{index}"
        value = build.build.gemm(value, weight, trans_b=o["transposed"], **build._names(""))
        if index == 0 and o["function"] == "softmax":
            value = build.add("softmax", [value], axis=1, log=False)
        elif index == 0 and o["function"] == "add value":
            value = build.apply("add", value, build.apply("exp", value))
        elif index == 0 and o["function"] != "none":
            value = build.apply(o["function"], value)
    if o["back"] == "reshape":
        value = build.add("reshape", [value], shape=(0, CHANNELS, 1, 1))
    elif o["back"] == "unsqueeze":
        value = build.add("unsqueeze", [build.add("unsqueeze", [value], axes=(2,))], axes=(3,))
    elif o["back"] == "turned":
        value = build.add("reshape", [value], shape=(0, 1, CHANNELS, 1))
    else:
        value = build.add("reshape", [value], shape=(0, 2, 1, CHANNELS // 2))
        value = build.add("reshape", [value], shape=(0, CHANNELS, 1, 1))
    build.output(build.apply("mul", "x", value) if o["back"] != "turned" else value)


_LAYER = {"op": ("neg",), "turn": (LAST, FIRST, (0, 2, 1, 3), None, (0, 1, 2, 3)),
          "back": (FIRST, None, LAST), "weight": (None,), "axes": ((3,),), "axis": (3,),
          "keep": (True,), "twice": (False,), "shape": ((CHANNELS,),), "reader": READERS}
_AXES = ((3,), (-1,), 3, -1, (1, 2), 2, (2,), (1,), (1, 2, 3), (0,), "spatial", None, (4,), 4, -5)
_LAYERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "neg": {}, "product": {"weight": (None, (1, CHANNELS, 3), (CHANNELS,))},
    "norm": {"axes": _AXES}, "reduce": {"axes": _AXES, "keep": (True, False)},
    "softmax": {"axis": (3, 1, 2, -1, 0, -4)}, "flat softmax": {"axis": (3, 1, -1)},
    "split": {"axis": (3, 1, 2), "twice": (False, True)},
    "constant": {"shape": ((CHANNELS,), (), (1,), (1, 1, 1, 1), (SIZE + 1, 1), (SIZE, 1, CHANNELS),
                           (1, SIZE, SIZE + 1, CHANNELS), (2, 1, 1, 1, 1), (1, 1, 1, 1, 1))},
    "own input": {}}
"""The options of a channels-last layer, and those that only some ops have."""
FAMILIES |= {
    **{f"channels last {op}": Family(channels_last, {**_LAYER, "op": (op,), **own}, 8, flags={
        "channels_first": True}) for op, own in _LAYERS.items()},
    "tokens": Family(tokens, {
        "width": (SIZE, SIZE + 1), "to": ("reshape", "flatten", "neg"),
        "columns": (None, (0, CHANNELS, -1), (0, SIZE, -1), (0, 2, -1), (-1, CHANNELS, SIZE)),
        "there": ((0, 2, 1), (1, 0, 2), (0, 1, 2), None), "back": ((0, 2, 1), (0, 1, 2), None),
        "shape": (None, (0, SIZE, CHANNELS, -1), (0, CHANNELS, -1)), "reader": READERS}, 16,
        {"channels_first": True}),
    "turned product": Family(turned_product, {
        "rank": (4, 3), "permutation": ("last", "none"),
        "number": ((), (1,), (1, 1), (1, 1, 1, 1), (1, 1, 1, 1, 1), (CHANNELS,), (SIZE,), "value",
                   "second", "shape"),
        "swapped": (False, True), "function": ("mul", "add"), "reader": READERS,
        "by": ("matmul", "left", "exp")}, 16),
    "pixels": Family(pixels, {
        "mean": ((2, 3), (3, 2), (-1, -2), "spatial", "kept", (1, 2), (2,), "pool", "rank 3",
                 "input"),
        "to": ("reshape", "flatten"), "products": (2, 1, 0, 3),
        "transposed": (True, False), "function": ("relu", "none", "softmax", "add value"),
        "weight": ("constant", "value", "input"),
        "back": ("reshape", "unsqueeze", "turned", "twice"), "reader": READERS}, 24),
}
