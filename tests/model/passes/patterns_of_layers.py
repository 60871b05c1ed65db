"""Graphs for the rewrites of layers and of the arithmetic behind them, of constants, casts,
expansions and signs: see patterns.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.expression import Expression, ExpressionStep, identity
from tests.model.graph_builder import CHANNELS, SIZE
from tests.model.passes.patterns import LAYERS, READERS, Family, Options, Pattern, layer_of, weights


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


def scalars(build: Pattern, o: Options) -> None:
    operands = []
    for kind in (o["first"], o["second"], o["third"]):
        if kind == "x":
            operands.append("x")
        elif kind == "integer":
            operands.append(build.build.constant("i", np.array(2, np.int32)))
        else:
            operands.append(build.constant(*kind))
    expression = Expression(3, (ExpressionStep("add", (0, 1)), ExpressionStep("mul", (3, 2)),
                                *((ExpressionStep("sub", (4, 0)),) if o["twice"] else ())))
    build.output(build.build.elementwise(expression, *operands, **build._names("")))


def casts(build: Pattern, o: Options) -> None:
    x = "x"
    if o["from"] == "truth":
        x = build.apply("greater", "x", build.scalar(0.5))
    elif o["from"] != "float32":
        x = build.add("cast", ["x"], dtype=o["from"])
    like = build.build.constant("like", np.zeros(1, o["to"]))
    value = build.add("cast_like", [x, like]) if o["like"] else build.add(
        "cast", [x], dtype=o["to"])
    build.also_read(value, o["reader"])
    build.output(build.pool(value) if o["to"] == "float32" else value)


def expansions(build: Pattern, o: Options) -> None:
    shape = build.add("shape", ["x"], start=0, end=None)
    if o["repeated"] == "number":
        repeated = build.add("constant_of_shape", [shape], value=np.array([1.5], np.float32))
    elif o["repeated"] == "whole":
        repeated = build.add("constant_of_shape", [shape], value=np.array([2], np.int64))
        repeated = build.add("cast", [repeated], dtype="float32")
    elif o["repeated"] == "value":
        repeated = build.add("expand", [build.mean("x"), shape])
    else:
        repeated = build.add("expand", [build.constant(*o["repeated"]), shape])
    for _ in range(o["computed"]):
        repeated = build.apply("mul", repeated, build.scalar(0.5))
    build.also_read(repeated, o["reader"])
    other = {"x": "x", "small": build.constant(CHANNELS, 1, 1), "same": repeated,
             "mean": build.mean("x")}[o["other"]]
    build.output(build.apply("add", *((repeated, other) if o["first"] else (other, repeated))))


def straight_through(build: Pattern, o: Options) -> None:
    smooth = {"x": lambda: "x", "tanh": lambda: build.apply("tanh", "x"),
              "number": lambda: build.scalar(3e7), "mean": lambda: build.mean("x"),
              "wide": lambda: build.constant(2, 1, CHANNELS, SIZE, SIZE)}[o["smooth"]]()
    levels = build.apply("clip", "x", constants=(0.0, 1.0))
    quantised = {"sign": lambda: build.apply("sign", "x"), "exp": lambda: build.apply("exp", "x"),
                 "levels": lambda: build.apply("round", build.apply(
                     "mul", levels, build.scalar(o["levels"])))}[o["quantised"]]()

    def sub(a: str, b: str) -> str:
        return build.apply("sub", a, b)

    def add(a: str, b: str) -> str:
        return build.apply("add", a, b)

    q, x = quantised, smooth
    build.output({
        "(q-x)+x": lambda: add(sub(q, x), x), "x+(q-x)": lambda: add(x, sub(q, x)),
        "x-(x-q)": lambda: sub(x, sub(x, q)), "(q+x)-x": lambda: sub(add(q, x), x),
        "(x+q)-x": lambda: sub(add(x, q), x), "q+(x-x)": lambda: add(q, sub(x, x)),
        "(x-x)+q": lambda: add(sub(x, x), q), "(x-q)+q": lambda: add(sub(x, q), q),
        "x-(q-x)": lambda: sub(x, sub(q, x)), "(q-x)-x": lambda: sub(sub(q, x), x),
        "x-(x+q)": lambda: sub(x, add(x, q)), "(x-x)-q": lambda: sub(sub(x, x), q),
        "(q+x)+x": lambda: add(add(q, x), x), "q-(x-x)": lambda: sub(q, sub(x, x)),
        "(q-x)*x": lambda: build.apply("mul", sub(q, x), x),
    }[o["sum"]]())


def joined(build: Pattern, o: Options) -> None:
    """A concatenation of layers that an element-wise node reads."""
    def part(kind: str) -> str:
        if kind == "conv":
            return build.conv("x")
        if kind == "relu":
            return build.apply("relu", "x")
        if kind == "gemm":
            rows = build.add("reshape", ["x"], shape=(0, -1))
            product = build.build.gemm(rows, build.constant(CHANNELS * SIZE * SIZE, CHANNELS),
                                       **build._names(""))
            return product
        return build.pool("x") if kind == "pool" else "x"

    first = part(o["first"])
    second = first if o["second"] == "same" else part(o["second"])
    build.also_read(second, o["part reader"])
    value = build.add("concat", [first, second], axis=o["axis"])
    build.also_read(value, o["reader"])
    for _ in range(o["followers"]):
        value = build.apply("mul", value, value) if o["by"] == "itself" else (
            build.apply("add", value, build.scalar(0.5)) if o["by"] == "number" else
            build.apply("add", value, build.constant(2 * CHANNELS, SIZE, SIZE))
            if o["by"] == "constant" else build.apply("round", value))
    build.output(build.pool(value) if o["end"] == "pool" and o["first"] != "gemm" else value)


def nearly_signs(build: Pattern, o: Options) -> None:
    """Layers whose weights have nearly one magnitude in each channel."""
    product = o["layer"] != "conv"
    x = build.add("reshape", ["x"], shape=(0, -1)) if product else "x"
    shape = (3, CHANNELS * SIZE * SIZE) if product else (3, CHANNELS, 3, 3)
    name = weights(build, o["weight"], *shape)
    rows = build.graph.constants[name]
    rows.reshape(len(rows), -1)[o["rows"], 1] *= np.float32(1 + o["off"])
    if o["layer"] == "plain gemm":
        build.graph.constants[name] = rows.T.copy()
    for index in range(2):
        x = build.apply("neg", x) if index else x
        build.output(build.build.gemm(x, name, trans_b=o["layer"] == "gemm", **build._names(""))
                     if product else build.build.conv2d(x, name, **build._names("")))


def scaled_inputs(build: Pattern, o: Options) -> None:
    """Values of a quantiser, -a, 0 and a, which a layer of signs reads."""
    value = build.binarise("x") if o["quantiser"] == "binary" else build.apply(
        {"ternary": "sign", "rounded": "round", "relu": "relu"}[o["quantiser"]], "x")
    if o["quantiser"] == "rounded":
        value = build.apply("clip", value, constants=(-1.0, 1.0))
    if o["scale"] is not None:
        value = build.apply("mul", value, build.scalar(o["scale"]))
    if o["shift"]:
        value = build.apply("add", value, build.scalar(o["shift"]))
    if o["between"] == "pad":
        value = build.add("pad", [value], pads=(0, 0, 1, 1, 0, 0, 1, 1), mode="constant",
                          value=o["pad"])
    elif o["between"] in ("pool", "average"):
        value = build.pool(value, kind="max" if o["between"] == "pool" else "average")
    elif o["between"] == "turned":
        value = build.add("transpose", [value], permutation=(0, 1, 3, 2))
    elif o["between"] == "shape":
        build.output(build.add("shape", [value], start=0, end=None))
    build.also_read(value, o["reader"])
    weight = weights(build, o["weight"], CHANNELS, CHANNELS, 3, 3)
    results = [build.build.conv2d(value, weight, **build._names(""))]
    if o["by"] == "two":
        results.append(build.conv(value, pad=0))
    elif o["by"] == "two signs":
        results.append(build.build.conv2d(
            value, weights(build, "scaled signs", CHANNELS, CHANNELS, 3, 3), **build._names("")))
    elif o["by"] == "exp":
        build.output(build.apply("exp", value))
    for result in results:
        build.output(result)


def two_results(build: Pattern, o: Options) -> None:
    """An element-wise node of two results, of which a network may need one or both."""
    value = {"conv": lambda: build.conv("x"), "x": lambda: "x",
             "concat": lambda: build.add("concat", [build.conv("x", out=2), build.conv(
                 "x", out=2)], axis=1),
             "turned": lambda: build.add("transpose", [build.pool("x")],
                                         permutation=(0, 1, 3, 2)),
             "pixel": lambda: build.add("reshape", [build.mean("x")], shape=(-1, CHANNELS))}[
        o["before"]]()
    steps = {"signs": (ExpressionStep("sign", (0,)), ExpressionStep("mul", (1, 1))),
             "scaled signs": (ExpressionStep("sign", (0,)), ExpressionStep("constant", (), (0.5,)),
                              ExpressionStep("mul", (1, 2)), ExpressionStep("neg", (3,))),
             "sums": (ExpressionStep("add", (0, 0)), ExpressionStep("neg", (1,)))}[o["steps"]]
    first = build.build.elementwise(
        Expression(1, steps, (len(steps) - 1, len(steps))), value, **build._names(""))
    second = f"{first}.b"
    build.graph.nodes[-1].outputs.append(second)
    results = {"both": (first, second), "first": (first,), "second": (second,)}[o["read"]]
    for result in results:
        if o["by"] == "signs" and o["before"] != "pixel":
            weight = weights(build, "scaled signs", CHANNELS, CHANNELS, 1, 1)
            result = build.build.conv2d(result, weight, **build._names(""))
        elif o["by"] == "product":
            result = build.add("matmul", [result, build.constant(
                CHANNELS if o["before"] == "pixel" else SIZE, 3)])
        elif o["by"] == "pixel" and o["before"] == "pixel":
            result = build.add("reshape", [result], shape=(0, CHANNELS, 1, 1))
        elif o["by"] == "sum":
            result = build.apply("add", result, "x" if o["before"] != "pixel" else result)
        else:
            result = build.apply("relu", result)
        build.output(result)


_SCALED = {
    "quantiser": ("binary", "ternary", "rounded", "relu"),
    "scale": (0.25, 1.0, -0.5, None, 1e-30, 3e38), "shift": (0.0, 0.25, -0.125, 1.0),
    "between": ("none", "pad", "pool", "average", "turned", "shape"), "pad": (0.0,),
    "weight": ("scaled signs", "signs", "any", "one differs", "tiny signs"),
    "by": ("one", "two", "two signs", "exp"), "reader": READERS}
FAMILIES |= {
    "scalars": Family(scalars, {
        "first": ("x", (1,), ()), "second": ((1,), (), (1, 1, 1, 1), (1, 1, 1, 1, 1), (2, 1, 1, 1),
                                             (CHANNELS, 1, 1), "x", "integer"),
        "third": ((CHANNELS, 1, 1), (1,), "x", (1, 1, 1, 1, 1)), "twice": (False, True)}, 20),
    "casts": Family(casts, {
        "from": ("float32", "truth", "int32", "int64"), "to": ("float32", "int32", "bool"),
        "like": (False, True), "reader": READERS}, 20),
    "expansions": Family(expansions, {
        "repeated": ("number", "whole", "value", (1,), (CHANNELS, 1, 1), (1, 1, 1, 1),
                     (1, CHANNELS, SIZE, SIZE), (1, 1, 1, 1, 1)),
        "computed": (0, 1, 2), "reader": READERS, "other": ("x", "small", "same", "mean"),
        "first": (True, False)}, 24),
    "straight through": Family(straight_through, {
        "sum": ("(q-x)+x", "x+(q-x)", "x-(x-q)", "(q+x)-x", "(x+q)-x", "q+(x-x)", "(x-x)+q",
                "(x-q)+q", "x-(q-x)", "(q-x)-x", "x-(x+q)", "(x-x)-q", "(q+x)+x", "q-(x-x)",
                "(q-x)*x"),
        "smooth": ("x", "tanh", "number", "mean", "wide"),
        "quantised": ("sign", "levels", "exp"), "levels": (15.0, 65535.0, 65536.0)}, 30),
    "joined": Family(joined, {
        "first": ("conv", "relu", "pool", "x", "gemm"),
        "second": ("conv", "same", "relu", "pool", "x"),
        "part reader": READERS, "reader": READERS, "axis": (1, -3),
        "followers": (1, 0, 2, 3), "by": ("round", "itself", "number", "constant"),
        "end": ("pool", "none")}, 24),
    "nearly signs": Family(nearly_signs, {
        "layer": ("conv", "gemm", "plain gemm"),
        "weight": ("scaled signs", "signs", "any", "zero row", "zeros", "one is zero", "infinite"),
        "rows": (slice(None), slice(1), slice(1, 2)),
        "off": (2.0**-20, 0.0, 2.0**-18, 2.0**-17, -2.0**-19, 0.5)}, 16),
    "two results": Family(two_results, {
        "before": ("conv", "x", "concat", "turned", "pixel"),
        "steps": ("signs", "scaled signs", "sums"), "read": ("both", "first", "second"),
        "by": ("relu", "signs", "product", "pixel", "sum")}, 60),
    "scaled inputs": Family(scaled_inputs, _SCALED, 40),
    "padded scaled inputs": Family(scaled_inputs, {
        **_SCALED, "between": ("pad",), "scale": (0.25, -0.5, 1.0), "shift": (0.0, 0.25),
        "weight": ("scaled signs",), "pad": (0.0, 0.25, -0.25, 1.0, None, 0.5)}, 24),
}
