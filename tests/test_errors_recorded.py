"""Messages that are shortened, and errors of results, stay as they were recorded."""

from __future__ import annotations

import itertools

import numpy as np

from gossamer import errors
from gossamer.accuracy import normalised_error
from tests.recorded import Recorded, digest
from tests.recorded.outcomes import outcome


def shown(text: str) -> str:
    return f"{len(text)} {text[:90]} {digest(text)}"


def test_messages_are_shortened(recorded: Recorded) -> None:
    texts = {}
    for length in (0, 1, 79, 80, 81, 82, 83, 84, 159, 160, 161, 162, 499, 500, 501, 502, 2000,
                   2001, 2500):
        long = "".join(str(index % 10) for index in range(length))
        lines = "\n".join([long, "", f"  {long}\t", "end"])
        texts[f"of {length}"] = " | ".join(map(shown, (
            errors.cut(long), errors.cut(long, 5), errors.cut(long, 500), errors.quoted(long),
            errors.quoted(long.encode()), errors.quoted([long, long]), errors.one_line(lines),
            str(errors.GossamerError(long)), str(errors.ModelError(lines)),
            str(errors.CompileError(lines)), errors.first_line(ValueError(lines)),
            errors.first_line(ValueError(long)))))
    for number in (0, 2, 3, 39, 40, 41, 200):
        values = list(range(number))
        texts[f"lists of {number}"] = " | ".join(shown(errors.quoted(each)) for each in (
            values, tuple(values), set(values), dict.fromkeys(values, 1), 10**number))
    nested: list[object] = []
    for depth in range(7):
        texts[f"depth {depth}"] = errors.quoted(nested)
        nested = [nested, {depth: (nested,)}]
    for value in ("a\nb", "\x00\u2028é", "", " \n ", b"\xff", None, 0.5, "\t"):
        texts[repr(value)] = " | ".join(map(ascii, (
            errors.quoted(value), errors.one_line(str(value)),
            errors.first_line(errors.InputError(value)), errors.first_line(KeyError(value)),
            str(errors.GossamerError(value)))))
    recorded("errors", texts)


def error_of(y: list[float], expected: list[float], images: int | None) -> str:
    return f"{normalised_error(np.float32(y), np.float32(expected), images):.6g}"


def test_errors_of_results(recorded: Recorded) -> None:
    nan, inf = float("nan"), float("inf")
    results = [[], [0.0, 0.0], [3.0, 4.0], [3.0, 0.0], [6.0, 8.0], [0.25, 0.0], [nan, 1.0],
               [inf, 1.0], [-inf, 1.0], [1.0, inf], [[3.0, 4.0], [0.0, 1.0]],
               [[3.0, 4.5], [0.0, 0.0]], [[0.0, 0.0], [0.0, 2.0]], [[1.0], [2.0]],
               [[inf, 0.0], [0.0, nan]]]
    texts = {}
    for one, other in itertools.product(results, results):
        for images in (None, 1, 2):
            texts[f"{one} {other} {images}"] = outcome(error_of, one, other, images, text=str)
    recorded("errors_of_results", texts)
