"""Values that verbs read from the texts of their options; tests/golden has what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gossamer.cli import (
    arguments,
    bench,
    compile,
    photo_options,
    run_inputs,
    serve,
    train,
    train_data,
)
from gossamer.cli.photo_options import PhotoOptions
from gossamer.model.graph import Graph, ValueInfo
from gossamer.model.metadata import ModelMetadata


def graph_of(*shapes: tuple[int | None, ...]) -> Graph:
    return Graph("net", [ValueInfo(f"x{index}", shape) for index, shape in enumerate(shapes)],
                 [], [], {})


@pytest.mark.parametrize(("read", "text", "value"), [
    (bench.parse_batches, "8,1,8", (8, 1, 8)),
    (bench.parse_precisions, "fp16,fp32,fp16", ("fp32", "fp16")),
    (compile._forced, ["a=b=x", "c=x", "c=y"], {"a=b": "x", "c": "y"}),
    (train._schedule, "step:4:0.3", ("step", 4, 0.3)), (photo_options._size, "1", (1, 1)),
    (train._padded_shape, "2x1", (2, 1)), (photo_options._size, "8x12", (8, 12)),
    (lambda size: photo_options.preprocessing("n", graph_of((None, 192)), PhotoOptions(
        size=size)).size, "8", (8, 8)), (train_data._fraction, "0.25", 0.25),
    (train_data._fraction, "a.csv", None), (serve._named, ["d/a.onnx.gz", "x=b.cfg", "n=c=d"],
                                            {"a": "d/a.onnx.gz", "x": "b.cfg", "n": "c=d"}),
    *[(lambda text: serve.seconds_of(text, "--latency"), text, pytest.approx(value))
      for text, value in (("5ms", 5e-3), ("0.005", 5e-3), ("200us", 2e-4), ("1 s", 1.0),
                          (".5s", 0.5), ("999999", 999999.0))]],
    ids=lambda value: getattr(value, "__qualname__", str(value)))
def test_values_of_options(read: Callable[[Any], Any], text: Any, value: Any) -> None:
    found = read(text)
    assert (tuple(found) if isinstance(found, list) else found) == value


def test_batches_are_all_rows_in_their_order() -> None:
    whole = np.arange(4)
    for rows, batch in itertools.product(range(6), range(1, 6)):
        parts = list(arguments.array_batches([np.arange(rows), whole], graph_of((None,), (4,)),
                                             rows, batch))
        assert np.concatenate([part for part, _ in parts]).tolist() == list(range(rows))
        assert {len(part) for part, _ in parts[:-1]} <= {batch} and len(parts[-1][0]) <= batch
        assert all(other is whole for _, other in parts)


@pytest.mark.parametrize("mixing", [None, "a node"])
def test_a_batch_size_changes_no_result(mixing: str | None,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_inputs, "mixing_node", lambda graph, size: mixing)
    for batch, rows, default in itertools.product((None, 1, 2, 3, 9), range(1, 5), (1, 2)):
        size = min(batch or default, rows)
        if mixing and batch is not None and size < rows:
            with pytest.raises(run_inputs.InputError, match=f"to run all {rows} inputs at once"):
                run_inputs.batch_size(graph_of((None, 3)), batch, rows, default)
        else:
            assert run_inputs.batch_size(graph_of((None, 3)), batch, rows, default) == (
                rows if mixing else size)


@pytest.mark.parametrize("brightness", [None, 0, 40, 63, 64, 128, 191, 192, 230, 255])
def test_negatives_are_nearer_to_the_inverse_of_the_training_data(brightness: int | None) -> None:
    levels = np.array([0, 60, 120, 127, 128, 200, 255])
    names = [str(level) for level in levels]
    found = run_inputs.negatives([*names, "more"], levels[:, None, None] * np.ones((1, 2, 2)),
                                 ModelMetadata(brightness=brightness))
    is_medium = brightness is None or 64 <= brightness <= 191
    # a negative lies on the other side of the middle grey
    assert found == ([] if is_medium or brightness is None else [
        str(level) for level in levels if (level > 127.5) != (brightness > 127.5)])
