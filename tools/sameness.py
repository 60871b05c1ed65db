"""Says whether a change that only moves and renames things left everything else as it was.

    python tools/sameness.py record --tree . --models FOLDER -o new.json --device host --kernels
    python tools/sameness.py compare old.json new.json --map tools/renames.toml

`record` writes down what the code of a tree does. For every layer of every network of a folder it
notes what was chosen and a digest of what was computed. With --kernels it notes how CUDA kernels
are built: those of the networks' plans, and those that tests ask for. No GPU is needed. `compare`
gives what the old record names its new names, and prints every difference. The map is a TOML file
of tables from old names to new ones, all of which may be absent: config_keys, algorithms, macros
and kernels. What holds for one algorithm or kernel alone stands in a table under its old name, as
in [config_keys.direct_sparse_compiled] and [macros.pipeline_mma].

The compiler gives other code for the same kernel once in some hundred builds. So each is built
until the same comes out twice, or with --known OLD.json what that record has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

MODULES = {
    "base": ("gossamer.device.base",),
    "generator": ("gossamer.ops.conv2d.sparse.generated.code", "gossamer.ops.conv2d.sparse_ptx"),
    "nvjitlink": ("gossamer.device.cuda.nvjitlink", "gossamer.device.nvjitlink"),
    "nvrtc": ("gossamer.device.cuda.nvrtc", "gossamer.device.nvrtc"),
    "ptx": ("gossamer.device.cuda.ptx", "gossamer.device.ptx"),
    "weights": ("gossamer.ops.weights", "gossamer.ops.algorithm"),
}
"""The paths that a module may have; the first one that exists is taken."""

NEW_NAMES = {"label": "config_text", "units": "compute_units", "local_bytes": "shared_bytes",
             "local_bytes_opt_in": "shared_bytes_opt_in", "group_size": "work_group_size"}
"""New names of what is called by its old name here: classes, functions, attributes, methods and
fields of limits. The old name is taken where an object has no such new one."""

TESTS = ("test_backprop*.py", "test_cuda_builds.py", "test_direct_sparse*.py",
         "test_sparse_gemm.py", "test_sparse_programs.py", "test_sparse_ptx.py", "test_code.py")
"""The files, anywhere among the tests, whose kernels are built."""

PLANS: dict[str, dict[str, Any]] = {"fixed": {}, "sparse": {"sparse_threshold": 0.5},
                                    "table": {"only": "direct_sparse_table"}}
"""Options of plans that measure nothing. The later ones count where they choose otherwise."""

LIMITS = {"units": 132, "memory_bytes": 2**37, "local_bytes": 48 << 10, "cluster": 8,
          "local_bytes_opt_in": 227 << 10, "group_size": 1024, "subgroup_size": 32,
          "cache_bytes": 60 << 20, "graph": True, "ballot": True, "fp16": True, "mma": True,
          "b1_mma": True, "cooperative": True, "sure_work_group_size": 1024}
"""Limits of the device for which the networks' kernels are built. A tree may lack some of them."""

ARCHITECTURE = "sm_90"
MOST_BUILDS = 9
BATCHES = {"run": (1, 2), "built": (1, 2, 64)}


def module(name: str) -> Any:
    """A module of the tree, wherever it is."""
    for path in MODULES[name]:
        try:
            return import_module(path)
        except ModuleNotFoundError as error:
            if not error.name or not path.startswith(error.name):
                raise
    raise SystemExit(f"the tree has none of {', '.join(MODULES[name])}")


def called(thing: Any, name: str) -> str:
    """Returns the name by which the tree calls an attribute of a thing, or a field of a class."""
    new = NEW_NAMES.get(name, name)
    return new if hasattr(thing, new) or new in getattr(
        thing, "__dataclass_fields__", ()) else name


def get(thing: Any, path: str) -> Any:
    """An attribute of an attribute, by old names."""
    for name in path.split("."):
        thing = getattr(thing, called(thing, name))
    return thing


def spec_text(spec: Any) -> str:
    """Returns shape, dtype, layout and paddings of a tensor, whether they are fields of its spec or
    of the spec's format."""
    owner = getattr(spec, "format", spec)
    fields = ("dtype", "layout", "channel_multiple", "border")
    return " ".join(map(str, (spec.shape, *(getattr(owner, name) for name in fields))))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plans(models: Path, device: Any, batches: Sequence[int]) -> Iterator[tuple[Any, Any, dict]]:
    """Every plan that is recorded with its program and what names it. Plans of the same choices
    come once."""
    gossamer = import_module("gossamer")
    for path in sorted(models.glob("*.onnx.gz")):
        for batch in batches:
            known: list[list[tuple[str, str]]] = []
            for name, options in PLANS.items():
                plan = gossamer.compile(str(path), device, **options)
                program = get(plan, "program")(batch)
                chosen = [(get(step, "algorithm.name"), get(step, "variant.label"))
                          for step in get(program, "steps")]
                if chosen not in known:
                    known.append(chosen)
                    yield plan, program, {
                        "network": path.name.removesuffix(".onnx.gz"), "plan": name,
                        "batch": batch, "on": get(plan, "device.name")}


def prepared(step: Any) -> Any:
    """A step made ready on its device."""
    weights = get(module("weights"), "Weights")(
        get(step, "layer.weights"), get(step, "device"), get(step, "layer.name"))
    return get(step, "algorithm.prepare")(
        weights, get(step, "problem"), get(step, "variant"), get(step, "device"))


def described(step: Any) -> dict[str, Any]:
    """Returns the choice for a layer as plain data."""
    inputs, outputs = ([spec_text(spec) for spec in get(step, name)]
                       for name in ("variant.inputs", "variant.outputs"))
    return {"layer": get(step, "layer.name"), "op": get(step, "layer.op"),
            "device": get(step, "device.name"), "algorithm": get(step, "algorithm.name"),
            "config": get(step, "variant.label"), "precision": get(step, "variant.precision"),
            "workspace": get(step, "variant.workspace"), "layouts": [*inputs, "->", *outputs]}


def run(step: Any, memory: dict[str, np.ndarray], root: Callable[[str], str]) -> list[str]:
    """Computes one layer and puts its outputs into memory; returns their digests."""
    device, specs = get(step, "device"), get(step, "variant.outputs")

    def poisoned(nbytes: int) -> Any:
        return get(device, "upload")(np.full(nbytes, 0xFF, np.uint8), "what a layer writes")

    inputs = [get(device, "upload")(memory[root(value)], "what a layer reads")
              for value in get(step, "inputs")]
    outputs = [poisoned(get(spec, "nbytes")) for spec in specs]
    scratch = get(step, "variant.workspace")
    get(step, "algorithm.launch")(prepared(step), inputs, outputs,
                                  poisoned(scratch) if scratch else None)
    get(device, "synchronize")()
    digests = []
    for value, spec, buffer in zip(get(step, "outputs"), specs, outputs, strict=True):
        array = np.empty(get(spec, "stored_shape"), get(spec, "stored_dtype"))
        get(device, "read")(buffer, array)
        memory[root(value)] = array
        digests.append(digest(array.tobytes()))
    return digests


def record_layers(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every network on every device: layer by layer over memory of its own, then as a whole."""
    rows: list[dict[str, Any]] = []
    for device in arguments.device:
        for plan, program, names in plans(arguments.models, device, BATCHES["run"]):
            root, rng = get(program, "root"), np.random.default_rng(0)
            memory = {root(value): array for value, array in get(program, "constants").items()}
            inputs = []
            for value in get(program, "inputs").values():
                spec = get(program, "specs")[value]
                numbers = rng.standard_normal(get(spec, "stored_shape"))
                inputs.append(numbers.astype(get(spec, "stored_dtype")))
                memory[root(value)] = inputs[-1]
            for step in get(program, "steps"):
                rows.append({**names, **described(step), "outputs": run(step, memory, root)})
            given = plan(*inputs)
            rows.append({**names, "layer": "the whole network", "outputs": [
                digest(array.tobytes()) for array in (
                    given if isinstance(given, tuple) else (given,))]})
    return {"layers": rows}


def recorder() -> Any:
    """A device without a driver, on which plans are made and kernels are asked for."""
    base, kernel = module("base"), SimpleNamespace(name="")
    device, limits, buffer = (get(base, name) for name in ("Device", "Limits", "Buffer"))

    def memory(nbytes: int) -> Any:
        made: Any = type("Memory", (buffer,), dict.fromkeys(
            buffer.__abstractmethods__, lambda self, offset, nbytes: memory(nbytes)))()
        made.nbytes = nbytes
        return made

    does = {"compile": lambda self, source: kernel,
            "assemble": lambda self, programs: [kernel] * len(programs),
            "empty": lambda self, nbytes, *_: memory(nbytes),
            "upload": lambda self, array, *_: memory(array.nbytes)}
    made: Any = type("Recorder", (device,), {
        **dict.fromkeys(device.__abstractmethods__, lambda self, *_, **options: None),
        **{NEW_NAMES.get(name, name): act for name, act in does.items()}, **does, "index": 0,
        "api": "cuda", "architecture": ARCHITECTURE, "description": "", "driver": ""})()
    fields = limits.__dataclass_fields__
    made.limits = limits(**{new: value for name, value in LIMITS.items()
                            if (new := called(limits, name)) in fields})
    return made


class Builds:
    """Every kernel that is stated while this watches, built once."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = known
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._made: dict[tuple[Any, ...], Future[dict[str, Any]]] = {}
        nvrtc, nvjitlink = module("nvrtc"), module("nvjitlink")
        compiler, assembler = get(nvrtc, "compile_cubin"), get(nvjitlink, "build")
        nothing = (b"\x7fELF", get(nvrtc, "BuildInfo")(0, 0, ""))
        # what tests build themselves is not looked at: it would be built once more
        for owner, name in ((nvrtc, "compile_cubin"), (nvjitlink, "build")):
            setattr(owner, called(owner, name), lambda *_, **options: nothing)

        def source(made: Any) -> None:
            if get(made, "path").is_file():
                oldest, newest = get(made, "architectures")
                fits = oldest if _number(oldest) >= 90 else min(
                    newest, ARCHITECTURE, key=_number)
                self._add(get(made, "function"), get(made, "defines"), fits, get(made, "text")(),
                          lambda: compiler(made, fits))

        def program(made: Any) -> None:
            self._add(get(made, "name"), (), ARCHITECTURE, get(made, "text"),
                      lambda: assembler(made, ARCHITECTURE, apart=True))

        self._generated: list[Any] = []
        self._watch(get(module("base"), "KernelSource"), source)
        self._watch(get(module("ptx"), "PtxProgram"), program)
        # whose programs are made when they are asked for
        self._watch(get(module("generator"), "Generated"), self._generated.append)

    @staticmethod
    def _watch(kind: Any, note: Callable[[Any], None]) -> None:
        make = kind.__init__

        def made(self: Any, *values: Any, **named: Any) -> None:
            make(self, *values, **named)
            note(self)

        kind.__init__ = made

    def _add(self, function: str, macros: Sequence[tuple[str, str]], architecture: str, text: str,
             build: Callable[[], tuple[bytes, Any]]) -> None:
        key = function, tuple(macros), architecture, digest(text.encode())
        if key not in self._made:
            self._made[key] = self._pool.submit(_built, build, self._known)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the records of all kernels, after waiting for their builds."""
        for each in self._generated:
            get(each, "program")
        return [{"function": function, "macros": macros, "architecture": architecture,
                 **built.result()}
                for (function, macros, architecture, _), built in sorted(
                    self._made.items(), key=lambda item: item[0])]


def _number(architecture: str) -> int:
    return int("".join(filter(str.isdigit, architecture)))


def _built(build: Callable[[], tuple[bytes, Any]], known: Collection[str]) -> dict[str, Any]:
    """Builds until a code comes out twice, or a known one, and returns the record of that build."""
    seen: set[str] = set()
    made: dict[str, Any] = {}
    for _ in range(MOST_BUILDS):
        try:
            made = _measured(*build())
        except Exception as error:
            made = {"code": f"raises {type(error).__name__}"}
        if made["code"] in known or made["code"] in seen:
            break
        seen.add(made["code"])
    return made


def _measured(cubin: bytes, info: Any) -> dict[str, Any]:
    sections = list(_sections(cubin))
    code = sorted(digest(data) for name, data, _ in sections
                  if name.startswith((".text.", ".nv.constant", ".nv.global")))
    shared = sum(size for name, _, size in sections
                 if name.startswith(".nv.shared.") and "reserved" not in name)
    return {"code": digest("".join(code).encode()), "registers": get(info, "registers"),
            "shared": shared, "spills": get(info, "spill_bytes")}


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes, int]]:
    """The name, the contents and the size of every section of an ELF file."""
    (start,) = struct.unpack_from("<Q", cubin, 40)
    length, count, strings = struct.unpack_from("<3H", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * length) for i in range(count)]
    for name, kind, _, _, offset, size in headers:
        first = headers[strings][4] + name
        data = b"" if kind == 8 else cubin[offset:offset + size]
        yield cubin[first:cubin.index(b"\0", first)].decode(), data, size


def record_kernels(arguments: argparse.Namespace) -> dict[str, Any]:
    """The kernels of the networks' plans for CUDA, and those of tests."""
    known = json.loads(arguments.known.read_text())["kernels"] if arguments.known else []
    builds, device = Builds({row["code"] for row in known}), recorder()
    rows = []
    for _, program, names in plans(arguments.models, device, BATCHES["built"]):
        for step in get(program, "steps"):
            rows.append({**names, **described(step), "outputs": []})
            prepared(step)
    run_tests(arguments.tree)
    return {"layers": rows, "kernels": builds.rows()}


def run_tests(tree: Path) -> None:
    """Runs the tests that ask for kernels. What hypothesis draws does not hang on how a test is
    written, nor on constants of the code."""
    import hypothesis
    import pytest
    from hypothesis.internal.conjecture import providers

    setattr(providers, "is_local_module_file", lambda path: False)  # noqa: B010

    class Choose:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            # Oclgrind is slow, and is given the kernels of other devices
            items[:] = [item for item in items if "oclgrind" not in item.name]
            for item in items:
                if hypothesis.is_hypothesis_test(item.obj):
                    hypothesis.seed(2)(item.obj)

    files = sorted({str(path) for name in TESTS for path in (tree / "tests").rglob(name)})
    os.chdir(tree)
    if pytest.main(["-p", "no:cacheprovider", "--no-header", *files], [Choose()]):
        print("some tests failed, perhaps before they asked for all their kernels",
              file=sys.stderr)


PARTS = {"layers": record_layers, "kernels": record_kernels}


def record(arguments: argparse.Namespace) -> int:
    """Runs both parts at the same time over a copy of the tree, which may change meanwhile."""
    if arguments.part:
        sys.path[0] = str(arguments.tree)
        where = Path(str(import_module("gossamer").__file__))
        assert where.is_relative_to(arguments.tree), f"gossamer was imported from {where}"
        start = time.perf_counter()
        found = PARTS[arguments.part](arguments)
        found["seconds"] = {arguments.part: round(time.perf_counter() - start)}
        arguments.output.write_text(json.dumps(found))
        return 0
    with tempfile.TemporaryDirectory(prefix="sameness-") as name:
        folder = Path(name).resolve()
        tree = folder / "work" / "tree"
        for part in ("gossamer", "tests"):
            shutil.copytree(arguments.tree / part, tree / part,
                            ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(arguments.tree / "pyproject.toml", tree)
        environment = {key: value for key, value in os.environ.items()
                       if key != "CI" and not key.startswith("GOSSAMER_")}
        environment |= {"PYTHONPATH": str(tree), "GOSSAMER_CACHE": str(folder / "cache")}
        parts = ["layers", "kernels"] if arguments.kernels else ["layers"]
        running = [subprocess.Popen(
            [sys.executable, __file__, "record", "--part", part, "--tree", tree, "--models",
             arguments.models.resolve(), "-o", folder / part,
             *([f"--known={arguments.known.resolve()}"] if arguments.known else []),
             *(f"--device={device}" for device in arguments.device)], env=environment)
            for part in parts]
        if any([process.wait() for process in running]):
            return 1
        made = [json.loads((folder / part).read_text()) for part in parts]
    whole: dict[str, Any] = {"layers": [], "kernels": [], "seconds": {}}
    for each in made:
        whole["layers"] += each["layers"]
        whole["kernels"] += each.get("kernels", [])
        whole["seconds"] |= each["seconds"]
    arguments.output.write_text(json.dumps(whole, indent=0))
    print(f"{arguments.output}: {_counts(whole)}; seconds: {whole['seconds']}")
    return 0


def _counts(whole: Mapping[str, Any]) -> str:
    outputs = sum(len(row["outputs"]) for row in whole["layers"])
    return f"{len(whole['layers'])} layers, {outputs} outputs, {len(whole['kernels'])} kernels"


def words(text: str, names: Mapping[str, Any], kind: str, of: str = "") -> str:
    """A text with new names for the words of a table, and of that for one old name."""
    table = names.get(kind, {})
    own = table.get(of)
    table = {**table, **(own if isinstance(own, dict) else {})}
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda found: new if isinstance(
        new := table.get(found[0]), str) else found[0], text)


def layers(whole: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of a record by what names them, with new names."""
    found: dict[str, dict[str, Any]] = {}
    for row in whole["layers"]:
        title = "{network} on {on}, batch {batch}, {plan}: {layer}".format(**row)
        if "config" in row:
            keys = [(words(key, names, "config_keys", row["algorithm"]), *value) for key, *value
                    in (each.split("=", 1) for each in row["config"].split(" "))]
            row = {**row, "config": " ".join(map("=".join, keys)),
                   "algorithm": words(row["algorithm"], names, "algorithms")}
        while title in found:
            title += " again"
        found[title] = row
    return found


def kernels(whole: Mapping[str, Any],
            names: Mapping[str, Any]) -> dict[tuple[str, ...], Counter[str]]:
    """Returns the builds of every function with its macros, both by their new names."""
    found: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in whole["kernels"]:
        function = row["function"]
        defined = sorted(words(f"{name}={value}", names, "macros", function)
                         for name, value in row["macros"])
        found[words(function, names, "kernels"), row["architecture"], *defined][
            " ".join(f"{name} {row.get(name)}" for name in (
                "code", "registers", "shared", "spills"))] += 1
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any],
                names: Mapping[str, Any]) -> Iterator[str]:
    """A line for everything in which the records differ."""
    before, after = layers(old, names), layers(new, {})
    for title in [*before, *(title for title in after if title not in before)]:
        if title not in before or title not in after:
            yield f"{title}: only in the {'old' if title in before else 'new'} record"
            continue
        for field in dict.fromkeys((*before[title], *after[title])):
            was, now = before[title].get(field), after[title].get(field)
            if was != now:
                yield f"{title}: {field}: {was} -> {now}"
    if [*before] != [*after] and before.keys() == after.keys():
        yield "the same layers come in another order"
    built, rebuilt = kernels(old, names), kernels(new, {})
    for key in sorted({*built, *rebuilt}):
        title = f"kernel {' '.join(key)}"
        gone, came = (sorted(counts.elements()) for counts in (
            built.get(key, Counter()) - rebuilt.get(key, Counter()),
            rebuilt.get(key, Counter()) - built.get(key, Counter())))
        if key not in built or key not in rebuilt:
            side, others = ("old", rebuilt) if key in built else ("new", built)
            alike = [" ".join(other) for other, counts in others.items()
                     if set(counts) & {*gone, *came} and (side == "new" or other not in built)]
            yield f"{title}: only in the {side} record" + (
                f"; the other one has such code as {alike[0]}" if alike else "")
        elif gone or came:
            yield f"{title}: {'; '.join(gone) or 'nothing'} -> {'; '.join(came) or 'nothing'}"


def compare(arguments: argparse.Namespace) -> int:
    old, new = (json.loads(path.read_text()) for path in (arguments.old, arguments.new))
    names = tomllib.loads(arguments.map.read_text()) if arguments.map else {}
    found = list(differences(old, new, names))
    print(*found, f"{len(found)} differences" if found else "the same", sep="\n")
    print(f"old: {_counts(old)}\nnew: {_counts(new)}")
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("record", help="write down what the code of a tree does")
    command.add_argument("--tree", type=Path, default=Path("."))
    command.add_argument("--models", type=Path, required=True, help="a folder of .onnx.gz files")
    command.add_argument("-o", "--output", type=Path, required=True)
    command.add_argument("--device", action="append", default=[], help="such as host; repeatable")
    command.add_argument("--kernels", action="store_true")
    command.add_argument("--known", type=Path, help="a record of the kernels as they were")
    command.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    command.set_defaults(act=record)
    command = commands.add_parser("compare", help="print every difference of two records")
    command.add_argument("old", type=Path)
    command.add_argument("new", type=Path)
    command.add_argument("--map", type=Path, help="a TOML file of old and new names")
    command.set_defaults(act=compare)
    arguments = parser.parse_args()
    status: int = arguments.act(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
