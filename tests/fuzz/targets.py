"""TARGETS: every reader of files, with seeds, a mutator and the way to read a file whole.

A reader is added by one entry.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gossamer
from gossamer.cli.prune import read_sparsities
from gossamer.device import kernel_cache
from gossamer.errors import GossamerError, ModelError
from gossamer.io.images import load_image
from gossamer.io.labels.reader import read_names
from gossamer.io.npy import read_arrays
from gossamer.model.infer.resolve import resolve
from gossamer.model.prune import prune
from gossamer.model.readers.onnx.reader import read_model
from gossamer.plan.plan import Plan
from gossamer.plan.report.summary import summarise
from gossamer.plan.store import tuning_file
from gossamer.plan.store.database import Database
from gossamer.train.data import sources
from gossamer_bench import row_files, sparse_data
from gossamer_bench.sparse_files import read_archive, read_sparse
from tests.fuzz import mutators, seeds
from tests.fuzz.onnx_mutator import onnx_file

Files = dict[str, bytes]
_MOST_INPUT = 2**20
"""Elements of the largest input with which a network is run."""


@dataclass(frozen=True)
class Target:
    """A reader of files.

    seeds: function that returns valid files, each set of files by name; the first name is the one
    that is read.
    mutate: changes the bytes of one of the files. Files of other suffixes may have their own
    mutator in `others`.
    read: reads a file to the end, and uses what is in it.
    unreadable: texts in messages of the reader's first check, which tells whether this is such a
    file at all and whole: checksum, magic bytes, container.
    """

    seeds: Callable[[], Sequence[Files]]
    mutate: mutators.Mutator
    read: Callable[[Path], object]
    unreadable: tuple[str, ...]
    others: Mapping[str, mutators.Mutator] | None = None

    @functools.cached_property
    def corpus(self) -> list[Files]:
        return list(self.seeds())

    def mutated(self, files: Files, rng: random.Random) -> Files:
        """Returns the files with a change in one of them."""
        name = rng.choice(sorted(files))
        mutate = (self.others or {}).get(Path(name).suffix, self.mutate)
        try:
            return {**files, name: mutate(files[name], rng)}
        except Exception:
            # what an earlier change has left may be no longer of the form that is taken apart
            return {**files, name: mutators.any_bytes(files[name], rng)}

    def passes(self, message: str) -> bool:
        """Says whether a file that is refused with this message got past the first check."""
        return not any(text in message for text in self.unreadable)


def _named(name: str, contents: Callable[[], Sequence[bytes]]) -> Callable[[], list[Files]]:
    return lambda: [{name: content} for content in contents()]


def _run_network(path: Path) -> None:
    graph = gossamer.load(path)
    summarise(resolve(graph, 1))
    _run(gossamer.compile(graph, "host"))


def _run_darknet(path: Path) -> None:
    """Runs a network of Darknet. Where its weights are too few or too many, they are made as many
    as the .cfg needs, so that more than their number is tried."""
    try:
        _run_network(path)
    except ModelError as error:
        needed = re.search(r"needs (\d+), so", str(error))
        if needed is None or int(needed[1]) > _MOST_INPUT:
            raise
        weights, nbytes = path.with_suffix(".weights"), 20 + 4 * int(needed[1])
        weights.write_bytes(weights.read_bytes()[:nbytes].ljust(nbytes, b"\0"))
        _run_network(path)


def _prune(path: Path) -> None:
    model = read_model(path)
    prune(model, 0.5, {}, scope="global", depthwise=True)
    model.SerializeToString()


def _run(plan: Plan) -> None:
    arrays = []
    for info in plan.inputs:
        shape = [2 if size is None else size for size in info.shape]
        if np.prod(shape, dtype=float) > _MOST_INPUT:
            return
        is_of_numbers = hasattr(np, info.dtype)
        arrays.append(np.zeros(shape, info.dtype) if is_of_numbers else np.full(2, "a", object))
    plan(*arrays)
    str(plan.report())


def _run_plan(path: Path) -> None:
    _run(Plan.load(path, "host"))


def _resume(path: Path) -> None:
    seeds.train(path, 3, resume=True)


def _measurements(path: Path) -> None:
    """Adds measurements to a file, as gossamer cache import does, and reads that."""
    kept = path.with_name("kept.sqlite")
    kept.unlink(missing_ok=True)
    seed = json.loads(seeds.measurements()[0])
    made_by = seed["sections"][0]["made_by"]
    file = Database(kept, "host", seed["device"], made_by)
    try:
        content = tuning_file.parse(path.read_bytes())
        file.take(content)
    except tuning_file.BadFile as error:
        raise GossamerError(error) from None
    assert [tuning_file.count(section) for section in content["sections"]]
    given = {key for section in content["sections"] if section["made_by"] == made_by
             for key in section.get("candidates", ())}
    again = Database(kept, "host", seed["device"], made_by)
    assert {key for (kind, _), lines in again.known.items() if kind == "candidates"
            for key in lines} == given
    assert not again.messages


def _kernel(path: Path) -> None:
    """Reads an entry of the cache of kernels, which must have the hash of its bytes or be passed
    over."""
    folder = path.parent / "kernels"
    folder.mkdir(exist_ok=True)
    key = ["fuzz"]
    name = hashlib.sha256(b"fuzz").hexdigest()
    data = path.read_bytes()
    (folder / name).write_bytes(data)
    os.environ["GOSSAMER_CACHE"] = str(path.parent)
    found = kernel_cache.stored(key)
    right = hashlib.sha256(data[32:]).digest() == data[:32]
    assert found == (data[32:] if right else None)
    if not right:
        raise GossamerError("hash")


def _checkpoint_files() -> list[Files]:
    return [{"file.checkpoint": content} for content in seeds.checkpoints()]


def _samples(path: Path) -> None:
    sources.load(path)


def _layers(path: Path) -> None:
    sparse_data.skimcaffe.__wrapped__(path.parents[1])


def _plan_mutator(name: str) -> mutators.Mutator:
    return mutators.json_text if name.endswith(".json") else mutators.npy


def _array_mutator(name: str) -> mutators.Mutator:
    return mutators.npy


def _arrays(path: Path) -> None:
    read_arrays(str(path), "--input")


def _entry_files() -> list[Files]:
    return [{"entry": hashlib.sha256(content).digest() + content} for content in seeds.entries()]


def _gz_pairs() -> list[Files]:
    return [{f"{name}.gz": seeds.packed([content])[0] for name, content in files.items()}
            for files in seeds.idx_pairs()]


_GZIP = ("is cut short or damaged",)
_ONNX = ("not readable", "holds no network")
_IMAGE = ("not an image",)
_CHECKPOINT = b"gossamer checkpoint 4\n"

TARGETS: dict[str, Target] = {
    "onnx": Target(_named("file.onnx", seeds.onnx_files), onnx_file, _run_network, _ONNX),
    "onnx.gz": Target(_named("file.onnx.gz", lambda: seeds.packed(seeds.onnx_files())),
                      mutators.packed_gzip(onnx_file), _run_network, (*_ONNX, *_GZIP)),
    "onnx with external data": Target(seeds.external_files, onnx_file, _run_network, _ONNX,
                                      {".bin": mutators.any_bytes}),
    "darknet": Target(seeds.darknet_files, mutators.text, _run_darknet, ("no text in UTF-8",),
                      {".weights": mutators.any_bytes}),
    "onnx to prune": Target(_named("file.onnx", seeds.onnx_files), onnx_file, _prune, _ONNX),
    "plan": Target(_named("file.plan", seeds.plan_files), mutators.zipped(_plan_mutator),
                   _run_plan, ("BadZipFile", "is not a plan")),
    "measurements": Target(_named("file.json", seeds.measurements), mutators.json_text,
                           _measurements, ("cut short",)),
    "kernel cache": Target(_entry_files, mutators.hashed(b"", mutators.any_bytes), _kernel,
                           ("hash",)),
    "checkpoint": Target(_checkpoint_files, mutators.hashed(_CHECKPOINT, mutators.zipped(
        lambda name: mutators.npy)), _resume, ("is damaged or cut short", "is not a checkpoint")),
    "npy": Target(_named("file.npy", seeds.npy_files), mutators.npy, _arrays, ("is no .npy",)),
    "npz": Target(_named("file.npz", seeds.npz_files), mutators.zipped(_array_mutator), _arrays,
                  ("not a zip file", "Bad CRC", "is not a .npy file")),
    "npz of samples": Target(_named("file.npz", seeds.npz_files),
                             mutators.zipped(_array_mutator), _samples,
                             ("not a zip file", "Bad CRC", "is not a .npy file")),
    "csv": Target(_named("file.csv", seeds.csv_files), mutators.text, _samples,
                  ("no text in UTF-8",)),
    "csv.gz": Target(_named("file.csv.gz", lambda: seeds.packed(seeds.csv_files())),
                     mutators.packed_gzip(mutators.text), _samples,
                     ("no text in UTF-8", *_GZIP)),
    "tsv": Target(_named("file.tsv", lambda: seeds.csv_files()[3:]), mutators.text, _samples,
                  ("no text in UTF-8",)),
    "idx": Target(seeds.idx_pairs, mutators.idx, _samples, ("begins with the bytes",)),
    "idx.gz": Target(_gz_pairs, mutators.packed_gzip(mutators.idx), _samples,
                     ("begins with the bytes", *_GZIP)),
    "png": Target(_named("file.png", lambda: seeds.pictures("PNG")), mutators.png, load_image,
                  _IMAGE),
    "jpeg": Target(_named("file.jpg", lambda: seeds.pictures("JPEG")), mutators.any_bytes,
                   load_image, _IMAGE),
    "bmp": Target(_named("file.bmp", lambda: seeds.pictures("BMP")), mutators.any_bytes,
                  load_image, _IMAGE),
    "gif": Target(_named("file.gif", lambda: seeds.pictures("GIF")), mutators.any_bytes,
                  load_image, _IMAGE),
    "ppm": Target(_named("file.ppm", lambda: seeds.pictures("PPM")), mutators.any_bytes,
                  load_image, _IMAGE),
    "class names": Target(_named("file.txt", lambda: [b"cat\ndog\nwolf\n"]), mutators.text,
                          read_names, ("no text in UTF-8",)),
    "result rows": Target(_named("file.jsonl", seeds.result_rows), mutators.json_lines,
                          row_files.read_rows, ("is not JSON", "cannot be read")),
    "mtx": Target(_named("file.mtx", seeds.market_files), mutators.text, read_sparse,
                  ("expected a MatrixMarket",)),
    "smtx": Target(_named("file.smtx", lambda: [seeds.SMTX]), mutators.text, read_sparse,
                   ("is no text",)),
    "tar of smtx": Target(_named("file.tar.gz", seeds.smtx_archives),
                          mutators.packed_gzip(mutators.tar(mutators.text)), read_archive,
                          ("no tar archive", *_GZIP)),
    "layers of SkimCaffe": Target(_named(sparse_data.SKIMCAFFE, seeds.layer_tables), mutators.text,
                                  _layers, ("cannot be read",)),
    "sparsities csv": Target(_named("file.csv", seeds.shares), mutators.text, read_sparsities,
                             ("no text in UTF-8",)),
    "sparsities json": Target(_named("file.json", seeds.shares_json), mutators.json_text,
                              read_sparsities, ("is no JSON", "no text in UTF-8")),
}


def resolved(target: Target, files: Files, folder: Path) -> Path:
    """Writes files into a folder and returns the one that is read."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / next(iter(files))


def read(target: Target, files: Files, folder: Path) -> Any:
    """Reads files that are written into a folder."""
    return target.read(resolved(target, files, folder))
