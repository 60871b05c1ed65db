"""Keys of problems and of algorithms' sources, which must be the same in every process."""

import contextlib
import importlib
import json
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.device import source
from gossamer.device import source as hashing
from gossamer.device.registry import find
from gossamer.device.source import sources
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.facts import PLUS_MINUS_ONE, integers
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.canonical import canonical
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor.cudnn import Cudnn
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.registry import OPS
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.store import keys
from gossamer.plan.store.keys import identity, libraries, problem_key, source_hash
from gossamer.tensor import Format, TensorSpec
from tests.processes import python

OPS_FOLDER = Path(keys.__file__).parents[2] / "ops"
PROBLEM = Conv2dProblem(
    2, 64, 56, 56, 128, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1,
    Epilogue(apply("add").then(apply("clip", 0.0, 6.0)), ("channel",)),
    WeightsInfo(0.125, "0f1e2d3c"))
# the key of PROBLEM; if keys change, everybody has to measure again
GOLDEN = "beea727c309385043e7ba6e43b28b750"


def test_a_key_stays_what_it_was():
    assert problem_key(PROBLEM) == GOLDEN


def test_facts_change_a_key_where_there_are_some():
    info = replace(PROBLEM.weights_info, facts=PLUS_MINUS_ONE)
    known = [replace(PROBLEM, facts=(PLUS_MINUS_ONE,)), replace(PROBLEM, weights_info=info)]
    assert len({GOLDEN, *map(problem_key, known)}) == 3
    assert "facts" not in canonical(PROBLEM) | canonical(PROBLEM)["weights_info"]


@pytest.mark.slow
def test_a_key_does_not_depend_on_the_process():
    code = ("from tests.plan.store.test_keys import PROBLEM; "
            "from gossamer.plan.store.keys import problem_key; print(problem_key(PROBLEM))")
    for seed in ("1", "2"):
        result = python(code, cwd=Path(__file__).parents[3],
                        env={"PYTHONHASHSEED": seed, "PATH": ""})
        assert result.stdout.strip() == GOLDEN


def test_numbers_of_numpy_are_numbers():
    numpy = replace(PROBLEM, batch=np.int64(2), kernel=(np.int32(3), 3),
                    weights_info=WeightsInfo(np.float64(0.125), "0f1e2d3c"))
    assert numpy == PROBLEM and problem_key(numpy) == GOLDEN


_OTHER_WORDS = {"float32": "float16", "add": "sub", "clip": "relu", "NCHW": "NHWC",
                "max": "average", "nearest": "linear", "half_pixel": "asymmetric",
                "round_prefer_floor": "floor"}


def others(value):
    """Yields values that differ from a value in one place each."""
    if is_dataclass(value):
        for field in fields(value):
            for other in others(getattr(value, field.name)):
                # some of these problems are invalid, such as a window larger than the input
                with contextlib.suppress(ValueError):
                    yield replace(value, **{field.name: other})
    elif isinstance(value, tuple):
        if value:
            yield (*value, value[-1])
        for index, item in enumerate(value):
            for other in others(item):
                yield (*value[:index], other, *value[index + 1 :])
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield float(np.nextafter(value, 9))
    elif isinstance(value, str):
        yield _OTHER_WORDS.get(value, f"{value} too")


X = TensorSpec((1, 2, 3, 4), Format("NCHW"))
PROBLEMS = [
    replace(PROBLEM, facts=(PLUS_MINUS_ONE,)),
    GemmProblem(1, 2, 3, PROBLEM.epilogue, facts=(integers(0, 3),)),
    CopyProblem(X, X, (0, 1, 2, None), (1, 1, 1, 0), (0, 0, 0, 0),
                facts=(PLUS_MINUS_ONE,)),
    ConcatProblem((X, X), 1, (PLUS_MINUS_ONE,)),
    PoolProblem(X, "max", (2, 2), facts=(PLUS_MINUS_ONE,)),
    ResizeProblem(X, (6, 8), (2.0, 2.0)),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.op)
def test_any_other_field_gives_another_key(problem):
    changed = list(others(problem))
    assert {name for other in changed for name in (field.name for field in fields(other))
            if getattr(other, name) != getattr(problem, name)} == {
                field.name for field in fields(problem)}
    problem_keys = [problem_key(other) for other in (problem, *changed)]
    assert len(set(problem_keys)) == len(problem_keys)


small = st.integers(1, 3)
expressions = st.sampled_from([
    apply("relu"), apply("neg"), apply("clip", 0.0, 6.0), apply("clip", 0.0, 1.0),
    apply("clip", 0.0, float("inf")), Expression(1, (ExpressionStep("relu", (0,)),), (0,))])
gemms = st.builds(
    GemmProblem, small, small, small, st.builds(Epilogue, expressions),
    st.builds(WeightsInfo, st.sampled_from([0.1, 0.5, 1.0]), st.sampled_from(["", "a"])))


@given(gemms, gemms)
def test_keys_are_equal_where_problems_are(one, other):
    assert (problem_key(one) == problem_key(other)) == (one == other)
    assert problem_key(replace(one)) == problem_key(one)


def test_problems_of_other_ops_differ():
    ops_by_text = {}
    for op in OPS.values():
        text = canonical(PROBLEM) | {"op": op.name}
        ops_by_text[json.dumps(text, sort_keys=True)] = op.name
    assert len(ops_by_text) == len(OPS) and canonical(PROBLEM)["op"] == "conv2d"


def test_what_has_no_canonical_form_is_refused():
    with pytest.raises(TypeError, match="no canonical form"):
        problem_key(replace(PROBLEM, groups=object()))


def names(algorithm):
    files, _ = sources(type(algorithm).__module__)
    return {str(path.relative_to(OPS_FOLDER.parent)) for path in files}


def test_sources_of_an_algorithm():
    (files,) = [names(algorithm) for algorithm in OPS["conv2d"].algorithms
                if algorithm.name == "depthwise"]
    assert {"ops/conv2d/dense/depthwise.py", "ops/conv2d/dense/depthwise.cl",
            "device/include/dialect/common.h", "ops/epilogue.py", "ops/algorithm.py",
            "expression.py"} <= files
    assert not any("im2col" in name or "pool" in name or "reference" in name for name in files)


def test_sources_of_algorithms_that_use_others():
    files = names(OPS["gemm"].algorithms[0])
    assert {"ops/gemm/few_rows.cl", "ops/conv2d/dense/im2col_gemm.py",
            "ops/conv2d/dense/im2col_gemm.cl"} <= files


def test_every_kernel_file_is_the_source_of_some_algorithm():
    files = set().union(*(names(algorithm) for op in OPS.values() for algorithm in op.algorithms))
    kernels = {str(path.relative_to(OPS_FOLDER.parent)) for suffix in ("cl", "cu", "h")
               for path in OPS_FOLDER.rglob(f"*.{suffix}")}
    assert kernels and kernels <= files


@pytest.fixture
def abacus(tmp_path, monkeypatch):
    """Makes an algorithm's module with a kernel beside an unrelated one. Returns a function that
    computes the algorithm's hash as a new process does."""
    (tmp_path / "abacus_algorithm.py").write_text(
        "import gossamer.ops.epilogue\nimport scipy.sparse\n"
        "class Abacus:\n    kernel = 'abacus.cl'\n")
    (tmp_path / "abacus.cl").write_text('#include "beads.h"\n')
    (tmp_path / "beads.h").write_text("header")
    (tmp_path / "neighbour.cl").write_text("kernel")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "abacus_algorithm", raising=False)
    instance = importlib.import_module("abacus_algorithm").Abacus()

    def forget():
        for cached in (hashing.source_hash, hashing._named_in, hashing._content,
                       hashing._module_files, hashing._versions, source._with_headers):
            cached.cache_clear()

    def fresh_hash():
        forget()
        return source_hash(instance)

    yield fresh_hash
    # what was patched is still patched: nothing of it may stay in the caches
    forget()
    del sys.modules["abacus_algorithm"]


def test_a_hash_changes_with_kernel_python_and_library(abacus, tmp_path, monkeypatch):
    first = abacus()
    (tmp_path / "neighbour.cl").write_text("changed")
    assert abacus() == first
    hashes = {first}
    (tmp_path / "abacus.cl").write_text("changed")
    hashes.add(abacus())
    (tmp_path / "abacus.cl").write_text('#include "beads.h"\n')
    (tmp_path / "beads.h").write_text("changed")
    hashes.add(abacus())
    with open(tmp_path / "abacus_algorithm.py", "a") as file:
        file.write("# changed\n")
    hashes.add(abacus())
    monkeypatch.setattr(hashing.metadata, "version", lambda package: "99")
    hashes.add(abacus())
    dialect = tmp_path / "common.h"
    dialect.write_text("changed")
    monkeypatch.setattr(hashing, "DIALECT", dialect)
    hashes.add(abacus())
    assert len(hashes) == 6


def test_a_hash_is_taken_once_a_process(abacus, tmp_path):
    first = abacus()
    module = sys.modules["abacus_algorithm"]
    (tmp_path / "abacus.cl").write_text("changed")
    assert source_hash(module.Abacus()) == first


def test_an_identity_changes_with_the_library_that_the_device_has(monkeypatch):
    host = find("host")
    algorithms = {algorithm.name: algorithm for algorithm in OPS["conv2d"].algorithms}
    cudnn, ours = algorithms["cudnn"], algorithms["depthwise"]
    before = {algorithm: (identity(algorithm, host), libraries(algorithm, host))
              for algorithm in (cudnn, ours)}
    assert before[cudnn][0] == source_hash(cudnn) and "cuDNN" not in before[cudnn][1]
    identities = {before[cudnn][0]}
    for version in ("9.19.0", "9.20.0"):
        monkeypatch.setattr(Cudnn, "version", lambda self, device, version=version: version)
        identities.add(identity(cudnn, host))
        assert libraries(cudnn, host) == {**before[cudnn][1], "cuDNN": version}
    assert len(identities) == 3
    assert (identity(ours, host), libraries(ours, host)) == before[ours]
