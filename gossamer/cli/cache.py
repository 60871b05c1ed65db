"""The verbs of `cache`: management of stored measurements and compiled kernels."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer.cli.arguments import JsonOption
from gossamer.device.kernel_cache import MOST_BYTES, cache_folder
from gossamer.errors import InputError
from gossamer.io import limits, output_files, terminal
from gossamer.io.text import bytes_text
from gossamer.plan.candidate import counted
from gossamer.plan.store import database, tuning_file
from gossamer.plan.store.tuning_cache import TuningCache, file_name, tuning_folder
from gossamer.plan.store.tuning_file import BadFile, count


@dataclass(frozen=True)
class StoredFile:
    """A file of the cache's tuning folder.

    file: name of the file.
    bytes: size of the file.
    device: description of the measured device.
    layers: number of measured layers.
    candidates: number of measured candidates.
    plans: number of measured plans.
    sections: one entry per combination of driver, toolkit and gossamer versions: the versions as
    text ("made_by"), and the numbers of layers, candidates and plans measured with these versions.
    problem: reason why the file is not used; None if it is used.
    """

    file: str
    bytes: int
    device: str = ""
    layers: int = 0
    candidates: int = 0
    plans: int = 0
    sections: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None


def list_caches(as_json: JsonOption = False) -> None:
    """List the stored measurements of each device, and the compiled kernels."""
    files = [_stored(path) for path in _tuning_files()]
    kernels = _kernel_files()
    size = sum(path.stat().st_size for path in kernels)
    if as_json:
        terminal.print_json({
            "folder": str(cache_folder()), "measurements": list(map(asdict, files)),
            "kernels": {"number": len(kernels), "bytes": size, "most_bytes": MOST_BYTES}})
        return
    print(f"folder: {cache_folder()}")
    rows = []
    for stored in files:
        common: dict[str, Any] = {"file": stored.file, "size": bytes_text(stored.bytes)}
        for section in stored.sections:
            rows.append({**common, **section, "device": stored.device})
            common = {}
        if not stored.sections:
            rows.append({**common, "device": stored.device, "made_by": stored.problem})
    if rows:
        terminal.print_table({"device": "device", "layers": "layers", "candidates": "candidates",
                              "plans": "plans", "size": "size", "made_by": "made by",
                              "file": "file"}, rows, spare=("made_by",))
    else:
        print("no measurements")
    print(f"{counted(len(kernels), 'compiled kernel')}, {bytes_text(size)} of at most "
          f"{bytes_text(MOST_BYTES)}")


def clear(
    device: Annotated[str | None, typer.Option(
        metavar="NAME", help="Remove only the measurements of this device (cuda:0), or the file of "
                             "this name in `gossamer cache list`.")] = None,
    kernels: Annotated[bool, typer.Option(
        "--kernels", help="Also remove the compiled kernels of all devices.")] = False,
) -> None:
    """Remove stored measurements, without asking."""
    chosen = _chosen(device)
    if not chosen:
        print(f"no measurements{f' of {device}' if device else ''} in {tuning_folder()}")
    for path in chosen:
        stored = _stored(path)
        _remove(path)
        contents = _counts(stored.layers, stored.candidates, stored.plans)
        print(f"removed {path}: {stored.problem or contents}")
    if kernels:
        files = _kernel_files()
        size = sum(path.stat().st_size for path in files)
        for path in files:
            _remove(path)
        print(f"removed {counted(len(files), 'compiled kernel')}, {bytes_text(size)}")


def export_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    device: Annotated[str | None, typer.Option(
        metavar="NAME", help="Device, such as cuda:0 (default: the best available).")] = None,
) -> None:
    """Write the measurements of a device to a file.

    Machines with the same device and the same versions of driver, toolkit and gossamer can import
    them.
    """
    from gossamer.device.registry import find

    opened = find(device)
    path = tuning_folder() / file_name(opened)
    try:
        content = database.read(path)
    except FileNotFoundError:
        raise InputError(f"no measurements of {opened.name} in {tuning_folder()}; run "
                         "`gossamer compile`, or choose another device with --device") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}; set GOSSAMER_CACHE "
                         "to the folder with the measurements") from None
    except BadFile as error:
        raise InputError(f"{path}: {error}; the next `gossamer compile` renames it and measures "
                         "again") from None
    if str(file) == "-":
        raise InputError("export -: cannot write to standard output; expected a file name")
    output_files.check_file("export", file, None)
    with output_files.replacing(file, f"export {file}") as target:
        target.write(tuning_file.text(content))
    print(f"written: {file}: {_contents(content)} of {opened.name}")


def import_file(
    file: Annotated[Path, typer.Argument(
        metavar="FILE", help="A file written by `gossamer cache export`.")],
    device: Annotated[str | None, typer.Option(
        metavar="NAME", help="Device, such as cuda:0 (default: the best available).")] = None,
) -> None:
    """Add the measurements of a file to the stored ones."""
    from gossamer.device.registry import find

    opened = find(device)
    try:
        content = tuning_file.parse(limits.whole(file))
        TuningCache(opened).take(content)
    except BadFile as error:
        raise InputError(f"{file}: {error}") from None
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}") from None
    print(f"added: {_contents(content)} for {opened.name}")


def _contents(content: dict[str, Any]) -> str:
    """Describe the numbers of layers, candidates and plans in a file."""
    return _counts(*map(sum, zip(*map(count, content["sections"]), strict=True)))


def _counts(layers: int, candidates: int, plans: int) -> str:
    return ", ".join((counted(layers, "layer"), counted(candidates, "candidate"),
                      counted(plans, "plan")))


def _chosen(device: str | None) -> list[Path]:
    """Return the measurement files selected by --device; all files for None."""
    files = _tuning_files()
    if device is None:
        return files
    if paths := [path for path in files if path.name == device]:
        return paths
    from gossamer.device.registry import find

    name = file_name(find(device))
    return [path for path in files if path.name.startswith(name)]


def _stored(path: Path) -> StoredFile:
    """Summarise a file of measurements, with the reason if it is not used."""
    name = path.name
    try:
        size = path.stat().st_size
    except OSError as error:
        return StoredFile(name, 0, problem=f"cannot be read ({error.strerror})")
    if path.suffix == ".json":
        return StoredFile(name, size, problem="written by an older gossamer, not read")
    if path.suffix != ".sqlite":
        return StoredFile(name, size, problem=f"set aside: {path.suffix[1:].partition('-')[0]}")
    try:
        content = database.read(path)
    except FileNotFoundError:
        return StoredFile(name, size, problem="still empty")
    except OSError as error:
        return StoredFile(name, size, problem=f"cannot be read ({error.strerror})")
    except BadFile as error:
        return StoredFile(name, size, problem=str(error))
    sections: list[dict[str, Any]] = []
    for section in content["sections"]:
        layers, candidates, plans = count(section)
        sections.append({"made_by": ", ".join(
            f"{key} {value}" for key, value in section["made_by"].items() if value),
            "layers": layers, "candidates": candidates, "plans": plans})
    return StoredFile(
        name, size, content["device"]["description"],
        sum(section["layers"] for section in sections),
        sum(section["candidates"] for section in sections),
        sum(section["plans"] for section in sections), sections)


def _tuning_files() -> list[Path]:
    return [path for path in _visible(tuning_folder())
            if not path.name.endswith(".sqlite-journal")]


def _kernel_files() -> list[Path]:
    return [path for path in _visible(cache_folder() / "kernels") if path.is_file()]


def _visible(folder: Path) -> list[Path]:
    """Return the files of a folder, except hidden ones (locks and partial files)."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}; set GOSSAMER_CACHE to a "
                         "readable folder") from None


def _remove(path: Path) -> None:
    try:
        if path.suffix == ".sqlite":
            database.clear(path)
        else:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"{path}: cannot be removed: {error.strerror}") from None
