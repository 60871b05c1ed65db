"""Tests of what all tests rely on: the error measure, required devices and the shared folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tolerances import normalised_error


def test_error_is_the_worst_image() -> None:
    reference = np.array([[3.0, 4.0], [30.0, 40.0]])
    y = reference + np.array([[0.5, 0.0], [0.5, 0.0]])
    assert normalised_error(y, reference) == pytest.approx(0.1)


def test_error_of_a_vector_is_of_the_whole() -> None:
    assert normalised_error(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == pytest.approx(0.1)


def test_error_of_a_zero_reference_is_absolute() -> None:
    assert normalised_error(np.array([[0.25, 0.0]]), np.zeros((1, 2))) == 0.25
    assert normalised_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_error_of_what_is_not_finite(value: float) -> None:
    not_finite, finite = np.array([[value, 1.0]]), np.array([[2.0, 1.0]])
    assert normalised_error(not_finite, not_finite) == 0
    assert normalised_error(not_finite, finite) == np.inf
    assert normalised_error(finite, not_finite) == np.inf


def test_shapes_must_agree() -> None:
    with pytest.raises(AssertionError, match="shape"):
        normalised_error(np.zeros((2, 1)), np.zeros((2, 2)))


def _run_tests_in(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess:
    tests = folder / "checkout" / "tests"
    tests.mkdir(parents=True)
    (tests / "golden").mkdir()
    for name in ("__init__.py", "fixtures.py", "workers.py", "cubins.py", "golden/__init__.py"):
        shutil.copy(Path(__file__).parent / name, tests / name)
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tests.parent)
    (tests / "test_nothing.py").write_text("def test_nothing(): pass\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tests)], capture_output=True, text=True,
        cwd=tests.parent, env={**os.environ, "CI": "", **environment})


def test_absent_required_device_fails_the_session(tmp_path: Path) -> None:
    run = _run_tests_in(tmp_path, "--require-device", "host,quantum")
    assert run.returncode == 1
    assert "required devices do not work here: quantum (working: host" in run.stdout + run.stderr


def test_absent_shared_folder_is_told_and_fails_ci(tmp_path: Path) -> None:
    run = _run_tests_in(tmp_path / "a")
    assert run.returncode == 0
    assert "not tested: real networks" in run.stdout.splitlines()[-1]
    run = _run_tests_in(tmp_path / "b", CI="true")
    assert run.returncode == 1
    assert "the networks of the tests are missing" in run.stdout + run.stderr
