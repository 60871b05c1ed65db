"""Measures networks of timm with gossamer and torch.compile, and writes the results in the columns
of timm's result files."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gossamer.bench import call_contest
from gossamer.bench.call_times import Load
from gossamer.bench.peers.calls import release
from gossamer.bench.rows import Stamp
from gossamer.bench.work import OWN, Setting
from gossamer.device.base import Device
from gossamer.errors import GossamerError, first_line
from gossamer_bench.modules import TIMM
from gossamer_bench.suites.torch_modules import case_of, works_of


def compiled_peer(device: Device) -> str:
    """Returns the peer whose times a row has: torch.compile, on GPUs in one CUDA graph."""
    return "torch-compile-graph" if device.runs_cuda_libraries else "torch-compile"


@dataclass(frozen=True)
class TimmRow:
    """A network of timm at a batch size.

    The columns have the names and the units of the columns in timm's result files.

    infer_samples_per_sec, infer_step_time: gossamer's pictures per second and milliseconds per
    batch.
    infer_batch_size, infer_img_size: number of pictures in a batch, and width of a picture in
    pixels.
    infer_gmacs: billions of multiplications for a picture.
    param_count: millions of parameters.
    compile_samples_per_sec, compile_step_time: pictures per second and milliseconds per batch of
    compiled_peer(); None where it failed.
    """

    model: str
    infer_samples_per_sec: float
    infer_step_time: float
    infer_batch_size: int
    infer_img_size: int
    infer_gmacs: float
    param_count: float
    compile_samples_per_sec: float | None
    compile_step_time: float | None


def measured(names: Sequence[str], batches: Sequence[int], setting: Setting, load: Load,
             stamp: Stamp, note: Callable[[str], None], failed: Callable[[str], None]
             ) -> Iterator[TimmRow]:
    """Measures networks of timm at batch sizes. A network and batch size that fail are left out.

    names: names of networks; those of timm have the prefix gossamer_bench.modules.TIMM.
    note: function that is called with a line of text on the progress.
    failed: function that is called with a line on each network and batch size that is left out.
    Raises AbsentError where torch or timm is not installed.
    """
    for name in names:
        for batch in batches:
            try:
                yield _row(name, batch, setting, load, stamp, note)
            except (GossamerError, RuntimeError) as error:
                failed(f"{name}, batch {batch}: {first_line(error)}")
            release()


def _row(name: str, batch: int, setting: Setting, load: Load, stamp: Stamp,
         note: Callable[[str], None]) -> TimmRow:
    works = works_of(name, batch, setting)
    work = next(iter(works.values()))
    result = call_contest.run(case_of(name, works, load, setting), stamp, note)
    times = {row.contender: row.median_us for row in result.rows}
    own, compiled = times[OWN], times.get(compiled_peer(setting.device))
    model = name.removeprefix(TIMM) if name.startswith(TIMM) else f"torchvision.{name}"
    return TimmRow(
        model, _rate(batch, own), round(own / 1e3, 3), batch, work.size[-1],
        round(work.multiplications / 1e9 / batch, 2), round(work.parameters / 1e6, 2),
        None if compiled is None else _rate(batch, compiled),
        None if compiled is None else round(compiled / 1e3, 3))


def _rate(batch: int, microseconds: float) -> float:
    return round(batch / microseconds * 1e6, 2)


def append(path: Path, row: TimmRow) -> None:
    """Appends a row to a CSV file, below a line of names where the file is new."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [member.name for member in fields(TimmRow)])
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))
