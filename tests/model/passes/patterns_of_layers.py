"""Graphs for the rewrites of layers and of the arithmetic behind them: see patterns.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.expression import Expression, ExpressionStep, identity
from tests.model.graph_builder import CHANNELS, SIZE
from tests.model.passes.patterns import LAYERS, READERS, Family, Options, Pattern, layer_of


def batch_norm(build: Pattern, o: Options) -> None:
    names: dict[str, Any] = {}
    if o["epilogue"] != "bias" and o["layer"] in ("conv", "groups", "depthwise"):
        names["epilogue"] = {"none": identity(), "relu": Expression(
            1, (ExpressionStep("relu", (0,)),))}[o["epilogue"]]
    value = layer_of(build, o["layer"], "x", o["weight"],
                     o["bias"] and o["epilogue"] == "bias", **names)
    if o["runtime weight"] and o["layer"] == "conv":
        build.build.input("w", (CHANNELS, CHANNELS, 3, 3))
        build.graph.nodes[-1].inputs[1] = "w"
    build.also_read(value, o["reader"])
    channels = CHANNELS * SIZE if o["layer"].endswith("rank 3") else CHANNELS
    norm = [build.constant(channels + o["more channels"], positive=part == 3)
            for part in range(4)]
    if o["gamma"] != 1:
        build.graph.constants[norm[0]] = build.graph.constants[norm[0]] * np.float32(o["gamma"])
    value = build.build.batch_norm(value, *norm, **build._names(""))
    build.output(build.then(value, o["then"]))


def epilogue(build: Pattern, o: Options) -> None:
    value = layer_of(build, o["layer"], "x", bias=o["bias"])
    build.also_read(value, o["reader"])
    shape = {"image": (1, CHANNELS, SIZE, SIZE), "gemm": (1, CHANNELS),
             "rows": (1, CHANNELS * SIZE, CHANNELS)}[
        "rows" if "rank 3" in o["layer"] else "gemm" if "gemm" in o["layer"] else "image"]
    other = o["operand"]
    if isinstance(other, tuple):
        operand = build.constant(*other)
    elif other == "integers":
        operand = build.build.constant("whole", np.ones(1, np.int32))
    elif other == "layer":
        operand = layer_of(build, o["layer"], "x")
    elif other == "value":
        operand = build.add("reshape", [build.apply("exp", "x")], shape=(0, *shape[1:])) if (
            shape[1:] == (CHANNELS, SIZE, SIZE)) else build.apply("exp", layer_of(
                build, o["layer"], "x"))
    elif other == "mean":
        operand = build.mean(value if o["own"] else "x")
    elif other == "itself":
        operand = value
    else:
        size = build.add("shape", ["x"], start=1, end=2)
        operand = build.add("cast", [size], dtype="float32")
    operands = [operand, value] if o["swapped"] else [value, operand]
    value = build.apply(o["function"], *operands)
    build.output(build.then(value, o["then"]))


def chain(build: Pattern, o: Options) -> None:
    """Two element-wise nodes of so many steps."""
    def steps(count: int) -> Expression:
        return Expression(1, tuple(ExpressionStep("relu" if index % 2 else "neg", (index,))
                                   for index in range(count)))

    first = build.build.elementwise(steps(o["first"]), "x", **build._names(""))
    build.also_read(first, o["reader"])
    second = build.build.elementwise(steps(o["second"]), first, **build._names(""))
    if o["join"] == "widened":
        second = build.apply("add", second, build.constant(3, 1, CHANNELS, SIZE, SIZE))
    elif o["join"] == "first":
        second = build.apply("mul", second, first)
    elif o["join"] == "mean":
        second = build.apply("mul", second, build.mean(first))
    elif o["join"] == "whole":
        second = build.add("cast", [second], dtype="int32")
    build.output(second)


def rounded_chain(build: Pattern, o: Options) -> None:
    """A rounded result of a layer, which is added to another value."""
    value = layer_of(build, o["layer"], "x")
    if o["before"] == "scaled":
        value = build.apply("mul", value, build.scalar(0.5))
    value = build.apply(o["function"], value)
    if o["behind"] == "scaled":
        value = build.apply("mul", value, build.scalar(0.25))
    other = {"layer": lambda: layer_of(build, o["layer"], "x"), "input": lambda: "x",
             "own": lambda: build.apply("exp", value), "number": lambda: build.scalar(2.0),
             "rounded": lambda: build.apply("round", layer_of(build, o["layer"], "x"))}[o["other"]]
    build.output(build.apply("add", value, other()))


def gemm(build: Pattern, o: Options) -> None:
    x = {4: lambda: "x", 3: lambda: build.add("reshape", ["x"], shape=(0, -1, SIZE)),
         2: lambda: build.add("reshape", ["x"], shape=(-1, SIZE)),
         1: lambda: build.add("reshape", ["x"], shape=(-1,)),
         "constant": lambda: build.add("cast", [build.add(
             "shape", ["x"], start=0, end=None)], dtype="float32")}[o["x"]]()
    weight = build.constant(*o["weight"])
    if o["dtype"] != "float32":
        build.graph.constants[weight] = build.graph.constants[weight].astype(o["dtype"])
    if o["runtime"]:
        build.build.input("w", o["weight"])
        weight = "w"
    value = build.add("matmul", [weight, x] if o["swapped"] else [x, weight])
    build.output(build.apply("relu", value) if o["relu"] else value)


def zero_pads(build: Pattern, o: Options) -> None:
    attributes: dict[str, Any] = {"mode": o["mode"], "value": o["value"]}
    inputs = ["x"]
    if o["pads"] == "computed":
        size = build.add("shape", ["x"], start=2, end=4)
        for name, values in (("less", [SIZE - 1, SIZE - 2]), ("none", [0, 0])):
            build.graph.constants[name] = np.array(values)
        before = build.apply("sub", size, "less")
        inputs.append(build.add("concat", ["none", before, "none", before], axis=0))
    else:
        attributes["pads"] = o["pads"]
    if o["axes"]:
        attributes["axes"] = o["axes"]
    value = build.add("pad", inputs, **attributes)
    build.also_read(value, o["reader"])
    if o["by"] == "pool":
        build.output(build.pool(value))
        return
    into = CHANNELS + (o["pads"][1] + o["pads"][5] if isinstance(o["pads"], tuple) and len(
        o["pads"]) == 8 else 0)
    result = build.conv(value, into=into, pad=1)
    if o["by"] == "automatic":
        build.graph.nodes[-1].attributes["auto_pad"] = "SAME_UPPER"
    if o["by"] == "two":
        result = build.apply("add", result, build.conv(value, size=1, pad=1))
    build.output(result)


FAMILIES = {
    "batch norm": Family(batch_norm, {
        "layer": LAYERS, "bias": (True, False), "epilogue": ("bias", "none", "relu"),
        "weight": ("any", "signs", "scaled signs", "one differs", "tiny signs", "huge signs",
                   "zeros"),
        "runtime weight": (False, True), "reader": READERS, "more channels": (0, 1),
        "gamma": (1, 1e-30, 1e30, 0),
        "then": ("none", "sign", "reshape", "pool", "conv", "relu", "round")}, 40),
    "epilogue": Family(epilogue, {
        "layer": LAYERS, "bias": (True, False), "reader": READERS,
        "operand": ((CHANNELS, 1, 1), (), (1,), (1, 1, 1), (1, 1, 1, 1, 1), (1, CHANNELS, 1, 1),
                    (CHANNELS,), (1, CHANNELS), (1, 1, CHANNELS), (SIZE,), (CHANNELS, SIZE, SIZE),
                    (2, CHANNELS, 1, 1), (1, 1, CHANNELS, 1, 1), "integers", "layer", "value",
                    "mean", "itself", "from shapes"),
        "own": (False, True), "swapped": (False, True), "function": ("add", "mul", "sub", "max"),
        "then": ("none", "relu", "sign", "pool")}, 60),
    "chain": Family(chain, {
        "first": (1, 127, 128, 129, 254, 255, 256, 257), "second": (1, 2, 127, 128, 255, 256),
        "reader": READERS, "join": ("none", "widened", "first", "mean", "whole")}, 20),
    "rounded chain": Family(rounded_chain, {
        "layer": ("conv", "gemm", "relu"), "function": ("round", "floor", "relu"),
        "before": ("scaled", "none"), "behind": ("none", "scaled"),
        "other": ("layer", "input", "own", "number", "rounded")}, 20),
    "gemm": Family(gemm, {
        "x": (4, 3, 2, 1, "constant"),
        "weight": ((SIZE, 3), (SIZE,), (1, SIZE, 3), (SIZE, SIZE), (CHANNELS, 3)),
        "dtype": ("float32", "int32"), "runtime": (False, True), "swapped": (False, True),
        "relu": (True, False)}, 20),
    "zero pads": Family(zero_pads, {
        "pads": ((0, 0, 1, 2, 0, 0, 3, 4), (0, 0, 0, 0, 0, 0, 0, 0), (1, 0, 1, 1, 0, 0, 1, 1),
                 (0, 1, 1, 1, 0, 0, 1, 1), (0, 0, 1, 1, 1, 0, 1, 1), (0, 0, 1, 1, 0, 1, 1, 1),
                 (0, 0, -1, 1, 0, 0, 1, 1), (0, 0, 0, 1, 0, 0, 0, 0), (1, 2, 3, 4), (0, 0, 3, 4),
                 "computed"),
        "mode": ("constant", "edge", "reflect"), "value": (0.0, 1.0, None), "axes": (None, (2, 3)),
        "reader": READERS, "by": ("conv", "pool", "two", "automatic")}, 20),
}
