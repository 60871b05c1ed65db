"""Graphs for the rewrites of channels and of parallel convolutions: see patterns.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.expression import Expression, ExpressionStep
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
