"""The suites of calls, `latency` and `throughput`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.bench.call_contest import CallCase
from gossamer.bench.call_times import Load
from gossamer.bench.calls import (
    LATENCY,
    THROUGHPUT,
    NetworkMaker,
    Shares,
    call_case,
    case_name,
    copy_rate,
    latency_case,
    streamed,
    throughput_case,
)
from gossamer.bench.networks import plans_of, precision_of
from gossamer.bench.work import ARRAYS, BYTES, KINDS, OWN, CalledContender, PeerNetwork, Setting
from gossamer.device.host import processors
from gossamer.errors import InputError
from gossamer.io.images import PRESETS, Preprocessing, open_image, pictures_in
from gossamer.io.picture_batches import picture_batches
from gossamer.model.formats import with_formats
from gossamer.model.input_format import InputFormat
from gossamer.model.photos import PhotoReader
from gossamer_bench.work import Files, Item


def latency_items(name: str, network: NetworkMaker, batch: int, files: Files) -> list[Item]:
    """Returns the cases of calls of one network: a case for each kind of input under each load."""
    return [Item(LATENCY, case_name(name, kind, load), batch,
                 partial(latency_case, network, batch, kind, load), is_called=True)
            for kind in KINDS for load in files.loads]


def throughput_items(name: str, network: NetworkMaker, batch: int, files: Files) -> list[Item]:
    """Returns the cases in which one network computes many batches: a case with arrays, a case with
    bytes and, where the command line names a folder, a case with the folder's pictures."""
    load = replace(files.loads[0], threads=1, rate=None)
    items = [Item(THROUGHPUT, f"{name}/{kind}", batch,
                  partial(throughput_case, network, batch, kind, load), is_called=True)
             for kind in (ARRAYS, BYTES)]
    if files.images is not None:
        items.append(Item(THROUGHPUT, f"{name}/pictures", batch,
                          partial(folder_case, network, batch, files.images, load),
                          is_called=True))
    return items


def folder_case(make: NetworkMaker, batch: int, folder: Path, load: Load,
                setting: Setting) -> CallCase:
    """Makes the case of the pictures of a folder, which are read ahead and computed by
    `plan.stream`. The case has no peers. Raises InputError where the folder has no pictures, or
    where the network takes no pictures."""
    network = make(batch)
    files = [str(path) for path in pictures_in(folder)[0]]
    prepare = _preparation(network)

    graph = with_formats(network.graph, InputFormat.from_metadata(prepare), None)
    reader = PhotoReader(prepare, graph.inputs[0])

    def batches() -> Any:
        names = iter(files)
        for part in picture_batches(reader, files, processors(), batch):
            for error, name in zip(part.errors, names, strict=False):
                if error:
                    raise InputError(f"{name}: {error}")
            yield part.pictures

    first = next(batches())
    start = time.perf_counter()
    for _ in batches():
        pass
    decoding = len(files) / (time.perf_counter() - start)
    plans = plans_of(graph, batch, setting)
    bus = copy_rate(setting.device)
    called: dict[str, Callable[[], CalledContender]] = {}
    for plan in plans:
        shares = Shares(len(first), first.nbytes, plan.end_to_end(len(first)).median_us, bus,
                         f"{decoding:,.0f} a second decoded alone by {processors()} processors")
        precision = precision_of(plan.program(batch))
        called[f"{OWN} {precision}"] = partial(
            streamed, OWN, plan, batches, len(files) / len(first), shares, precision)
    values = np.stack([prepare(open_image(file)) for file in files[:len(first)]])
    return call_case(THROUGHPUT, f"{network.name}/pictures", network, values, plans, called, load)


def _preparation(network: PeerNetwork) -> Preprocessing:
    """Returns how pictures are prepared for a network: as the network says, else as grey pictures
    from 0 to 1 for one channel, and by ImageNet's statistics for three. Raises InputError where the
    network takes no pictures."""
    graph = network.graph
    if len(graph.inputs[0].shape) != 4 or graph.inputs[0].shape[1] not in (1, 3):
        raise InputError(f"--images: {network.name} takes no pictures")
    usual = (replace(PRESETS["unit"], channels="grey") if graph.inputs[0].shape[1] == 1
             else PRESETS["imagenet"])
    return (graph.metadata.preprocessing or usual).fitted(graph.inputs[0].shape)
