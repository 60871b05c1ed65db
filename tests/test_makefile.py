"""Tests of the commands that `make` would run, without running them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.mark.slow
def test_a_wheel_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("needs a checkout of git")
    rule = subprocess.run(["make", "--dry-run", "--no-print-directory", "wheel",
                           "WHEEL_ARGS=--no-build-isolation"],
                          cwd=ROOT, text=True, capture_output=True, check=True).stdout
    rule = "umask 022" + rule.rpartition("umask 022")[2]
    wheels = []
    for umask in ("022", "077"):
        folder = tmp_path / umask
        command = rule.replace(".venv/bin/python", sys.executable).replace("dist", str(folder))
        subprocess.run(["sh", "-c", f"umask {umask}; {command}"], cwd=ROOT, check=True)
        (wheel,) = folder.glob("gossamer-*.whl")
        wheels.append(wheel.read_bytes())
        time.sleep(2.1)  # a zip file has times in steps of two seconds
    assert wheels[0] == wheels[1]


def installed(target: str, path: str) -> str:
    """Returns the extras that a target installs with this search path of programs."""
    commands = subprocess.run(["make", "--dry-run", "--always-make", target], cwd=ROOT, text=True,
                              capture_output=True, check=True,
                              env={**os.environ, "PATH": path}).stdout
    (line,) = [line for line in commands.splitlines() if "-e '.[" in line]
    return line.partition("[")[2].partition("]")[0]


def test_measurements_have_nvidias_libraries_where_there_is_a_driver(tmp_path: Path) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\n")
    driver.chmod(0o755)
    with_driver = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert installed("bench", with_driver) == "bench,opencl,vendor"
    assert installed("demo", with_driver) == "host,opencl,cuda"
    if not (Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi")):
        assert installed("bench", os.environ["PATH"]) == "bench,opencl"
