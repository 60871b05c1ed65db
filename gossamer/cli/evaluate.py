"""The verb `evaluate`: counts how many labelled samples a network gets right."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import gossamer
from gossamer.cli.arguments import AnyPlan, device_of, load_graph, load_plan, results_of
from gossamer.cli.labelled_inputs import LabelledInputs, labelled_inputs
from gossamer.cli.options import (
    BgrOption,
    DevicesOption,
    GreyOption,
    JsonOption,
    LabelOption,
    LabelsOption,
    MeanOption,
    PlanArgument,
    PreprocessOption,
    ResizeOption,
    ScaleOption,
    ShapeOption,
    SizeOption,
    StdOption,
    StrictOption,
    WeightsOption,
)
from gossamer.cli.photo_options import PhotoOptions
from gossamer.cli.progress import input_bar
from gossamer.cli.report import print_notes
from gossamer.errors import InputError
from gossamer.io import terminal
from gossamer.io.text import human, shape_text
from gossamer.model import outputs as network_outputs
from gossamer.plan.candidate import counted

_TOP = (1, 5)
"""The k of each top-k: a sample counts as right where its class is among the k best."""


def evaluate(
    model: PlanArgument,
    data: Annotated[str, typer.Argument(
        metavar="DATA", help="Labelled samples: a folder with one folder of photos for each class, "
                             "a .csv file, a .npz file (x, y), or an idx file.")],
    device: DevicesOption = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples at once (32).")] = None,
    labels: LabelsOption = None,
    label: LabelOption = "first",
    limit: Annotated[int | None, typer.Option(
        min=1, help="Take so many samples at most.")] = None,
    shape: ShapeOption = None,
    weights: WeightsOption = None,
    preprocess: PreprocessOption = None,
    size: SizeOption = None,
    resize: ResizeOption = None,
    scale: ScaleOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    bgr: BgrOption = False,
    grey: GreyOption = False,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> None:
    """Count how many labelled samples a network gets right: top-1 and top-5."""
    options = PhotoOptions(preprocess, size, resize, scale, mean, std, bgr, grey)
    saved_plan = load_plan(model, device, shape, weights, strict)
    graph = load_graph(model, shape, weights) if saved_plan is None else saved_plan.graph
    samples = labelled_inputs(model, graph, data, label, limit, options, batch,
                              is_planned=saved_plan is not None)
    plan = saved_plan or gossamer.compile(samples.graph, device=device, strict=strict)
    start = time.perf_counter()
    ranks, classes = _ranks(model, plan, samples, labels)
    seconds = time.perf_counter() - start
    device_name, description = device_of(plan)
    top = {count: int((ranks < count).sum()) for count in _TOP if count < classes}
    if as_json:
        terminal.print_json({
            "model": model, "data": samples.source, "device": device_name,
            "description": description, "samples": len(ranks), "classes": classes,
            "seconds": seconds, **{f"top{count}": right / len(ranks)
                                   for count, right in top.items()},
            **{f"top{count}_right": right for count, right in top.items()}})
        return
    print(f"device: {device_name} ({description})")
    print_notes(plan.report(min(samples.batch, len(ranks))))
    terminal.print_line(f"data: {counted(len(ranks), 'sample')} of {samples.source}, "
                        f"{classes} classes; {seconds:.1f} s, "
                        f"{human(len(ranks) / seconds)} a second")
    for count, right in top.items():
        print(f"top-{count}: {right / len(ranks):.2%} ({right} of {len(ranks)})")


def _ranks(model: str, plan: AnyPlan, samples: LabelledInputs,
           labels: Path | None) -> tuple[np.ndarray, int]:
    """Returns the rank of each sample's right class (how many classes the network puts before it),
    and the number of classes. Raises InputError where the network does not score classes, or has no
    class for a sample's label."""
    ranks: list[np.ndarray] = []
    right: np.ndarray | None = None
    broken = 0
    sizes: deque[int] = deque()

    def sized(batches: Iterable[tuple[np.ndarray, ...]]) -> Iterator[tuple[np.ndarray, ...]]:
        for arrays in batches:
            sizes.append(len(arrays[0]))
            yield arrays

    with input_bar() as bar:
        task = bar.add_task(f"running on {device_of(plan)[0]}", total=len(samples.labels))
        for result in results_of(plan, sized(samples.batches)):
            scores = result[0] if isinstance(result, tuple) else result
            rows = sizes.popleft()
            if not network_outputs.is_class_scores(scores, rows):
                raise InputError(f"{model}: output {plan.graph.network_outputs[0].name!r} is "
                                 f"{shape_text(scores.shape)} {scores.dtype}: no score for each "
                                 "class, which evaluate counts")
            if right is None:
                classes = scores.shape[1]
                right = samples.classes(classes, labels, plan.graph.metadata.classes)
            done = sum(map(len, ranks))
            ranks.append(network_outputs.ranks(scores, right[done:done + rows]))
            broken += len(network_outputs.broken_rows(scores, rows))
            correct = sum(int((part == 0).sum()) for part in ranks)
            bar.update(task, completed=done + rows,
                       description=f"top-1 {correct / (done + rows):.2%}")
    if broken:
        terminal.notice(f"{broken} of {len(samples.labels)} samples: the scores have NaN or "
                        "infinite numbers", "warning")
    return np.concatenate(ranks), classes
