"""A Ray cluster on this machine that loses a worker: pictures, and the training of many networks.

    python -m tests.bulk.ray_cluster --pictures 2000 --networks 40

A worker is killed by its process id in the middle, one picture is damaged, and both runs are
stopped and resumed. It ends with an exit code of 1 where a result is missing, wrong, twice or out
of order.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray
from PIL import Image

from gossamer import MLP, sweep
from tests.cli.command_line import save_network

_MARK = f"gossamer-{os.getpid()}"


def _killer(title: bytes, killed: list[int], after: float) -> threading.Thread:
    """Returns a thread that kills the first worker of this cluster with a title."""
    def kill() -> None:
        time.sleep(after)
        for _ in range(2000):
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if title in (process / "cmdline").read_bytes() and (
                            _MARK.encode() in (process / "environ").read_bytes()):
                        os.kill(int(process.name), signal.SIGKILL)
                        killed.append(int(process.name))
                        return
            time.sleep(0.02)

    return threading.Thread(target=kill, daemon=True)


def _run(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "gossamer", "run", *map(str, words), "--device",
                             "host", "--preprocess", "unit", "--batch", "16"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _pictures(count: int, folder: Path, address: str) -> bool:
    network = save_network(folder / "tiny.onnx")
    photos = folder / "photos"
    photos.mkdir()
    for index in range(count):
        pixels = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(photos / f"{index:05}.png")
    (photos / f"{count // 3:05}.png").write_bytes(b"nonsense")
    right, rows = folder / "right.jsonl", folder / "rows.jsonl"
    _run(network, photos, "-o", right).communicate()
    killed: list[int] = []
    killer = _killer(b"_PictureWorker", killed, 0.0)
    killer.start()
    stopped = _run(network, photos, "-o", rows, "--ray", address)
    while stopped.poll() is None and (
            not rows.exists() or rows.read_text().count("\n") <= count / 3):
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate()
    before = rows.read_text().count("\n")
    out, err = _run(network, photos, "-o", rows, "--ray", address, "--resume").communicate()
    same = _alike(rows, right)
    damaged = rows.read_text().count('"error"')
    print(f"{count} pictures: worker {killed or 'none'} killed, stopped after {before} rows and "
          f"resumed; {rows.read_text().count(chr(10))} rows, {damaged} damaged, "
          f"{'the same as on one machine, in order' if same else f'WRONG {out} {err}'}", flush=True)
    return same and bool(killed) and damaged == 1


def _alike(rows: Path, right: Path) -> bool:
    """Returns whether two files have the same rows in the same order; their numbers may differ by
    rounding, as a network rounds otherwise in batches of other sizes."""
    pairs = list(zip(*(list(map(json.loads, path.read_text().splitlines()))
                       for path in (rows, right)), strict=True))
    return all(a["file"] == b["file"] and a.get("error") == b.get("error")
               and [line["class"] for line in a.get("classes", ())] == [
                   line["class"] for line in b.get("classes", ())]
               and np.allclose(_numbers(a), _numbers(b), atol=1e-5) for a, b in pairs)


def _numbers(row: Mapping[str, Any]) -> list[float]:
    return [line.get("probability", line.get("score")) for line in row.get("classes", ())]


def _networks(count: int, folder: Path, address: str) -> bool:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 16)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] ** 2 > 1).astype(int)
    base, grid = MLP(hidden=(16,), epochs=6, device="host"), {"seed": range(count)}
    right = sweep(base, grid, x, y)
    killed: list[int] = []
    killer = _killer(b"ray::train", killed, 0.0)
    killer.start()
    kept = folder / "kept"
    result = sweep(base, grid, x, y, ray=address, checkpoint=kept)
    killer.join(1)
    # as if the run had been stopped before the last networks
    for file in sorted(kept.glob("*.checkpoint"))[-8:]:
        file.unlink()
    again = sweep(base, grid, x, y, ray=address, checkpoint=kept, resume=True)
    same = all(np.array_equal(a.coefs_[0], b.coefs_[0]) and np.array_equal(a.coefs_[0], c.coefs_[0])
               for a, b, c in zip(right.networks, result.networks, again.networks, strict=True))
    in_order = [row["config"] for row in again.rows] == list(range(count))
    print(f"{count} networks: worker {killed or 'none'} killed; resumed without the last eight; "
          f"{'the same as in one process, in order' if same and in_order else 'WRONG'}", flush=True)
    return same and in_order and bool(killed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--networks", type=int, default=40)
    arguments = parser.parse_args()
    paths = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    os.environ["GOSSAMER_TEST_CLUSTER"] = _MARK
    # workers are started with the environment of the cluster
    context = ray.init(num_cpus=3, log_to_driver=False, include_dashboard=False,
                       runtime_env={"env_vars": {"PYTHONPATH": paths}})
    with tempfile.TemporaryDirectory() as folder:
        done = [_pictures(arguments.pictures, Path(folder), context.address_info["address"]),
                _networks(arguments.networks, Path(folder), "auto")]
    ray.shutdown()
    return int(not all(done))


if __name__ == "__main__":
    sys.exit(main())
