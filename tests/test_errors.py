"""Messages are one line of bounded length, whatever names and values they quote."""

from __future__ import annotations

from typing import Any

import pytest

from gossamer import errors

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
