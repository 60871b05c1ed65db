"""Tests of what all tests rely on: required devices and the shared folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path


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
