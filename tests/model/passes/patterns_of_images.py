"""Graphs for the rewrites of channels-last images, tokens and pixels: see patterns.py."""

from __future__ import annotations

from typing import Any

from gossamer.expression import apply
from gossamer.model.graph import ValueInfo
from tests.model.graph_builder import CHANNELS, SIZE
from tests.model.passes.patterns import READERS, Family, Options, Pattern

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
FAMILIES = {
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
