"""Runs PyTorch's tests of compilers with the backend gossamer.

    python tools/torch_suite.py FOLDER --match conv --json rows.jsonl

The tests are those of inductor and of Dynamo's backends. FOLDER is the root of PyTorch's source, at
the tag of the installed version or close to it. The tests are read from
test/inductor/test_torchinductor.py (class CommonTemplate) and test/dynamo/test_backends.py, and
nothing is copied. Functions that a test passes to check_model or `common` are computed (forward
only, on the processor) by eager torch and by torch.compile(backend="gossamer"). Their values,
dtypes, shapes and writes to the inputs are compared. Tests that pass no function, because they
inspect inductor's code, do not count. The exit status is 1 if a result is wrong, a process ends, or
gossamer raises an exception.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import sys
import traceback
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty
from typing import Any

FILE = Path("test", "inductor", "test_torchinductor.py")
BACKENDS = Path("test", "dynamo", "test_backends.py")
SECONDS = 300.0
"""Time limit of a test in seconds."""
RTOL, ATOL = 1e-4, 1e-5
"""Smallest tolerances in float32, since sums have other orders. The absolute tolerance is
multiplied by the largest number of a result."""


class WrongError(AssertionError):
    """A result that differs from eager torch's."""


def loaded(path: Path, split: str = "") -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Execute a file statement by statement, and skip statements that fail.

    Failing statements need another version of torch. The class `split` is executed member by
    member. Returns the names of the file, the members of the class, and its failing members.
    """
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module  # Dynamo imports the modules of functions by their names
    sys.path[:0] = [str(path.parent), str(path.parent.parent)]
    members: dict[str, Any] = {}
    lacking: list[str] = []

    def run(statement: ast.stmt, into: dict[str, Any]) -> None:
        try:
            exec(compile(ast.Module([statement], []), str(path), "exec"), module.__dict__, into)
        except Exception:
            lacking.extend([statement.name] if isinstance(statement, ast.FunctionDef) else [])

    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ClassDef) and statement.name == split:
            lacking.clear()
            for member in statement.body:
                run(member, members)
            break
        run(statement, module.__dict__)
    return module.__dict__, members, lacking


def template(folder: Path) -> tuple[type, dict[str, Any], list[str]]:
    """Return inductor's test class, its file's names, and failing tests.

    The failing tests cannot be executed with this version of torch.
    """
    from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests

    names, members, lacking = loaded(folder / FILE, "CommonTemplate")
    kind = type("CommonTemplate", (TestCase,), {**members, "device": "cpu"})
    return instantiate_parametrized_tests(kind), names, lacking


def check(test: Any, model: Any, example_inputs: Any, kwargs: Any = None, *, atol: Any = None,
          rtol: Any = None, exact_dtype: bool = True, assert_equal: bool = True,
          **options: Any) -> None:
    """Compare a compiled function with eager torch; replaces PyTorch's check_model."""
    import torch

    from gossamer.torch.backend import backend

    def copied(values: Any) -> Any:
        return torch.utils._pytree.tree_map_only((torch.Tensor, torch.Generator), _clone, values)

    kwargs = kwargs or {}
    torch._dynamo.reset()
    with torch.no_grad():
        given, given_kwargs = copied(tuple(example_inputs)), copied(kwargs)
        torch.manual_seed(0)
        expected = model(*given, **given_kwargs)
        test.checked += 1
        torch.manual_seed(0)
        actual = torch.compile(lambda *x, **y: model(*x, **y), backend=backend,
                               options={"least_operators": 1})(*example_inputs, **kwargs)
    if not assert_equal:
        return
    floats = [value for value in torch.utils._pytree.tree_leaves(expected)
              if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()]
    largest = max((value.abs().nan_to_num(0, 0, 0).max().item() for value in floats), default=1.0)
    tolerances = {"atol": max(atol or 0, ATOL * max(1.0, largest)), "rtol": max(rtol or 0, RTOL)}
    dtypes = {value.dtype for value in torch.utils._pytree.tree_leaves(expected)
              if isinstance(value, torch.Tensor)}
    if dtypes & {torch.float16, torch.bfloat16}:
        tolerances = {"atol": max(atol or 0, 1e-2), "rtol": max(rtol or 0, 1.6e-2)}
    try:
        assert type(actual) is type(expected), f"{type(actual)} for {type(expected)}"
        test.assertEqual(actual, expected, equal_nan=True, exact_dtype=exact_dtype, **tolerances)
        written, theirs = ([leaf for leaf in torch.utils._pytree.tree_leaves(values)
                            if isinstance(leaf, torch.Tensor)]
                           for values in (example_inputs, given))
        test.assertEqual(written, theirs, equal_nan=True, **tolerances)
    except AssertionError as error:
        raise WrongError(str(error)) from error


def _clone(tensor: Any) -> Any:
    import torch

    if isinstance(tensor, torch.Generator):
        return torch.Generator(tensor.device).set_state(tensor.get_state())
    if tensor.layout != torch.strided or tensor.is_quantized:
        return tensor.clone()
    size = tensor.untyped_storage().size() // tensor.element_size()
    memory = torch.as_strided(tensor.detach(), (size,), (1,), 0).clone()
    return torch.as_strided(memory, tensor.size(), tensor.stride(), tensor.storage_offset())


def outcome(kind: type, name: str) -> dict[str, Any]:
    """Run a test, and return its row."""
    from gossamer.torch.backend import reports

    reports.clear()
    test = kind(name)
    test.checked = 0
    row = {"test": name, "result": "right", "text": ""}
    try:
        test.setUp()
        getattr(test, name)()
    except unittest.SkipTest as error:
        row |= {"result": "skipped", "text": str(error)}
    except WrongError as error:
        row |= {"result": "wrong", "text": str(error)[:2000]}
    except BaseException as error:
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        ours = test.checked and any("gossamer/" in frame and "torch_suite" not in frame
                                    for frame in frames)
        row |= {"result": "exception" if ours else "other",
                "text": f"{type(error).__name__}: {error}"[:2000]}
    if not test.checked and row["result"] in ("right", "other"):
        row["result"] = "not run"
    return row | {"operators": sum(report.operators for report in reports),
                  "taken": sum(report.taken for report in reports),
                  "left": [[left.operator, left.reason] for report in reports
                           for left in report.left]}


def work(folder: Path, names: list[str], rows: Any) -> None:
    """Run tests; queue each name before its row."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind, module, _ = template(folder)
    kind.common = check  # type: ignore[attr-defined]
    for name in ("check_model", "assertGeneratedKernelCountEqual"):
        module[name] = check if name == "check_model" else lambda *_: None
    for name in names:
        rows.put(name)
        rows.put(outcome(kind, name))
    rows.put(None)


def results(source: Any, names: list[str],
            work: Callable[[Any, list[str], Any], None] = work) -> Iterator[dict[str, Any]]:
    """Yield the rows of tests, which run in another process.

    If a test exceeds SECONDS, or the process ends, the row says so, and a new process continues.
    """
    context = multiprocessing.get_context("spawn")
    while names:
        rows = context.Queue()
        process = context.Process(target=work, args=(source, names, rows), daemon=True)
        process.start()
        current, done = names[0], 0
        while True:
            try:
                row = rows.get(timeout=SECONDS)
            except Empty:
                row = {"test": current, "result": "took too long", "text": f"{SECONDS:.0f} s"}
            if isinstance(row, str):
                current = row
                continue
            if row is None:
                return
            done += 1
            yield row
            if row["result"] == "took too long":
                break
        process.kill()
        names = names[done:]


def of_backends(folder: Path) -> unittest.TestSuite:
    """Return the tests of Dynamo's backends, including one of gossamer."""
    import torch
    import torch._dynamo.test_case

    _, members, _ = loaded(folder / BACKENDS, "TestOptimizations")

    def test_gossamer(test: Any) -> None:
        with torch.no_grad():
            test._check_backend_works("gossamer")

    kind = type("TestOptimizations", (torch._dynamo.test_case.TestCase,),
                {**members, "test_gossamer": test_gossamer})
    return unittest.defaultTestLoader.loadTestsFromTestCase(kind)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="", help="only tests with this text in their names")
    parser.add_argument("--json", type=Path, help="file to which a row per test is appended")
    options = parser.parse_args()
    if not (options.folder / FILE).is_file():
        print(f"skipped: there is no {options.folder / FILE}; give the root of PyTorch's source")
        return 0
    kind, _, lacking = template(options.folder)
    names = [name for name in dir(kind) if name.startswith("test_") and options.match in name]
    found: list[dict[str, Any]] = []
    for row in results(options.folder, names):
        found.append(row)
        if row["result"] not in ("right", "skipped", "not run"):
            print(f"{row['test']}: {row['result']}: {row['text'][:300]}", flush=True)
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    counts = Counter(row["result"] for row in found)
    operators, taken = (sum(row.get(key, 0) for row in found) for key in ("operators", "taken"))
    print(f"{len(names)} tests, {len(lacking)} need another version of torch: "
          + ", ".join(f"{count} {result}" for result, count in counts.most_common()))
    print(f"plans compute {taken} of {operators} operators ({taken / max(operators, 1):.0%})")
    backends = unittest.TextTestRunner(verbosity=0).run(of_backends(options.folder))
    bad = counts["wrong"] + counts["exception"] + counts["took too long"]
    return int(bool(bad) or not backends.wasSuccessful())


if __name__ == "__main__":
    raise SystemExit(main())
