"""A mutator of ONNX files that knows their protobuf fields."""

from __future__ import annotations

import json
import random
from typing import Any

import onnx
from google.protobuf.message import DecodeError, Message

from tests.fuzz.mutators import NUMBERS, TEXTS, any_bytes, json_text

_FLOATS = (0.0, -1.0, 0.5, 1e-45, 1e30, 3e38, float("nan"), float("inf"), -float("inf"), 2.5e9)
_OPS = ("Add", "Relu", "Conv", "Gemm", "Concat", "Reshape", "Gather", "Pad", "Resize", "Slice",
        "Split", "Loop", "If", "Softmax", "MatMul", "Expand", "Range", "ConstantOfShape", "Cast",
        "Einsum", "ImageDecoder", "Tile", "Constant", "Trilu", "GatherND", "GatherElements",
        "ScatterND", "ScatterElements", "ArgMax", "TopK", "CumSum", "Mod", "ReduceProd", "Size",
        "RMSNormalization", "ReduceLogSumExp")
_MOST_PLACES = 4000
_SIZES = (0, 1, 2, 3, 4, 5, 8, 16, -1, -2, 1000)


def onnx_file(data: bytes, rng: random.Random) -> bytes:
    """Changes a few fields of a model: numbers, names, types, whole nodes and tensors."""
    if rng.random() < 0.05:
        return any_bytes(data, rng)
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError:
        return any_bytes(data, rng)
    if model.graph.node and rng.random() < 0.1:
        _stretch(rng.choice(model.graph.node), rng)
        return model.SerializeToString(deterministic=True)
    places = list(_places(model))[:_MOST_PLACES]
    # a name that is no text is bytes
    names = sorted({name for node in model.graph.node for name in (*node.input, *node.output)
                    if isinstance(name, str)})
    message, field = rng.choice(_weighted(places, rng))
    _change(message, field, rng, places, names)
    return model.SerializeToString(deterministic=True)


def _stretch(node: onnx.NodeProto, rng: random.Random) -> None:
    """Gives a node windows, steps and pads that are all large and may fit each other."""
    number = rng.choice((30, 300, 3000, 30_000, 3_000_000))
    for attribute in node.attribute:
        if attribute.ints and rng.random() < 0.8:
            value = number - 1 if attribute.name == "pads" else rng.choice((1, number, number // 2))
            attribute.ints[:] = [value] * len(attribute.ints)
    if rng.random() < 0.5 and not any(a.name == "pads" for a in node.attribute):
        node.attribute.add(name="pads", type=onnx.AttributeProto.INTS, ints=[number - 1] * 4)
    if rng.random() < 0.5 and not any(a.name == "strides" for a in node.attribute):
        node.attribute.add(name="strides", type=onnx.AttributeProto.INTS,
                           ints=[rng.choice((1, number))] * 2)


def _weighted(places: list[tuple[Message, Any]], rng: random.Random) -> list[tuple[Message, Any]]:
    """Returns places of one kind of message, so that a large tensor does not take all changes."""
    kind = rng.choice(sorted({type(message).__name__ for message, _ in places}))
    return [place for place in places if type(place[0]).__name__ == kind]


def _places(message: Message) -> Any:
    """Yields every message with each of its fields, those that are not set included."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.type == field.TYPE_MESSAGE:
            value = getattr(message, field.name)
            if _repeated(field):
                for item in list(value)[:50]:
                    yield from _places(item)
            elif message.HasField(field.name):
                yield from _places(value)


def _repeated(field: Any) -> bool:
    return bool(getattr(field, "is_repeated", None) if hasattr(field, "is_repeated")
                else field.label == field.LABEL_REPEATED)


def _change(message: Any, field: Any, rng: random.Random, places: list[tuple[Message, Any]],
            names: list[str]) -> None:
    """Changes one field of a message."""
    value = getattr(message, field.name)
    if field.type == field.TYPE_MESSAGE:
        twins = [other for other, _ in places
                 if other.DESCRIPTOR.full_name == field.message_type.full_name]
        if _repeated(field):
            if len(value) and rng.random() < 0.4:
                del value[rng.randrange(len(value))]
            elif twins:
                # by its bytes, since a message may hold the place that it is copied to
                content = rng.choice(twins).SerializeToString()
                value.add().ParseFromString(content)
            if len(value) > 1 and rng.random() < 0.3:
                items = [type(item).FromString(item.SerializeToString()) for item in value]
                rng.shuffle(items)
                del value[:]
                value.extend(items)
        elif rng.random() < 0.4 or not twins:
            message.ClearField(field.name)
        else:
            value.ParseFromString(rng.choice(twins).SerializeToString())
    elif _repeated(field):
        if len(value) and rng.random() < 0.3:
            del value[rng.randrange(len(value))]
        elif len(value) and rng.random() < 0.6:
            at = rng.randrange(len(value))
            value[at] = _scalar(field, value[at], rng, names)
        else:
            value.append(_scalar(field, None, rng, names))
    elif rng.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, value, rng, names))


def _scalar(field: Any, old: Any, rng: random.Random, names: list[str]) -> Any:
    """Returns another value of a field's type."""
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(_FLOATS)
    if field.type == field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if field.type == field.TYPE_BYTES:
        if old and old[:1] in (b"{", b"["):
            return json_text(old, rng)
        return any_bytes(old or b"abc", rng)
    if field.type == field.TYPE_STRING:
        if field.name == "value" and old and _is_json(old):
            return json_text(old.encode(), rng).decode("utf-8", "replace")
        if field.name == "op_type" and rng.random() < 0.8:
            return rng.choice(_OPS)
        return rng.choice(names) if names and rng.random() < 0.7 else rng.choice(TEXTS)
    low, high = {field.TYPE_INT32: (-2**31, 2**31 - 1), field.TYPE_UINT64: (0, 2**64 - 1)}.get(
        field.type, (-2**63, 2**63 - 1))
    number = rng.choice(_SIZES if rng.random() < 0.6 else NUMBERS)
    return min(max(number, low), high)


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list | dict)
    except (ValueError, RecursionError):
        return False
