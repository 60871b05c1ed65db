"""Messages are one line of bounded length, whatever names and values they quote."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gossamer
from gossamer import errors
from gossamer_bench.suites.catalogue import select

DIGITS = "0123456789" * 10**4


@pytest.mark.parametrize("value", [
    "it's", b"ab", 3, 0.5, None, [1, "b"], (1,), {"a": [1]}, list(range(20)), DIGITS,
    DIGITS[:161], DIGITS[:159], DIGITS.encode(), 10**4000, list(range(10**5)),
    dict.fromkeys(range(10**5)), [DIGITS] * 9, set(range(41)), "\x00\n\u2028" * 99],
    ids=lambda value: type(value).__name__)
def test_values_are_quoted_as_python_writes_them(value: Any) -> None:
    text, whole = errors.quoted(value), repr(value)
    assert text.isprintable() and (text == whole or len(text) == 80 < len(whole))
    if text != whole and isinstance(value, str) and value.isprintable():
        assert text == f"{whole[:52]}...{whole[-25:]}"


def test_messages_are_one_line_but_build_logs_are_whole() -> None:
    text = "\n".join(["first\t", "", "  second\x1b[0m", DIGITS[:700]])
    assert str(errors.CompileError(text)) == text
    message = str(errors.ModelError(text))
    assert message.startswith(r"first second\x1b[0m 0123") and message.endswith(text[-100:])
    assert len(message) == 500 and message.isprintable()
    assert str(errors.InputError("a\n b")) == "a b" and len(str(errors.InputError(DIGITS))) == 500
    assert str(errors.InputError(DIGITS[:500])) == DIGITS[:500]
    assert errors.first_line(ValueError("\n  \n a\x00 \nb")) == r"a\x00"
    assert errors.first_line(KeyError()) == "KeyError"
    assert errors.first_line(ValueError(DIGITS[:161])) == errors.cut(DIGITS[:161], 160)


@pytest.mark.parametrize(("call", "meant"), [
    (lambda: gossamer.compile("mobilenet_v2", "host", effort="nromal"), "normal"),
    (lambda: gossamer.compile("mobilenet_v2", "host", effort="quick", precision="fp61"), "fp16"),
    (lambda: gossamer.compile("mobilenet_v2", "hots"), "host"),
    (lambda: gossamer.compile("mobilenet_v2", "cpu"), "host"),
    (lambda: gossamer.compile("mobilenet_v2", "host", inputs="photo"), "photos"),
    (lambda: gossamer.load("mobilnet_v2"), "mobilenet_v2"),
    (lambda: gossamer.load(f"{Path(__file__).parent}/test_erors.py"), ".*test_errors.py"),
    (lambda: gossamer.InputFormat("uint8", "NHCW"), "NHWC"),
    (lambda: gossamer.MLP().set_params(hiden=8), "hidden"),
    (lambda: gossamer.MLP(activation="Rleu").fit([[1.0], [2.0]], [1, 2]), "relu"),
    (lambda: select(["gem"], [1]), "gemm")])
def test_a_mistyped_name_is_asked_about(call: Callable[[], object], meant: str) -> None:
    with pytest.raises(errors.GossamerError, match=f"; did you mean '{meant}'\\?"):
        call()
    assert errors.did_you_mean("nothing like it", ["host", "cuda"]) == ""


def test_a_mistyped_argument_is_asked_about() -> None:
    for function in (gossamer.compile, gossamer.optimize):
        with pytest.raises(TypeError, match=f"{function.__name__}.*; did you mean 'effort'\\?"):
            function("mobilenet_v2", efort="quick")
    assert "effort" in inspect.signature(gossamer.compile).parameters


@pytest.mark.parametrize("address", ["https://e.com/a/m.onnx", "s3://bucket/m.onnx"])
def test_addresses_keep_their_slashes(address: str) -> None:
    for call in (gossamer.load, gossamer.Plan.load):
        with pytest.raises(errors.InputError, match=address):
            call(address)
