"""Plans over the blocks of Ray's data sets: order, damaged pictures, lost workers, resources."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gossamer
from gossamer import MLP, sweep
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.io.images import Preprocessing
from gossamer.ray import connect, map_batches, map_pictures
from gossamer.ray.cluster import Workers
from gossamer.ray.data import Measured, Shipped
from tests.cli.command_line import save_network, succeeds
from tests.model.onnx_models import save
from tests.plan.small import assert_close, compiled, expected, images, small

MARK = uuid.uuid4().hex.encode()
"""A mark by which the test tells its own workers from other workers on the machine."""
PREPARE = Preprocessing(size=(6, 5), scale=1 / 255)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    # workers read the code that this process tests
    paths = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=3, log_to_driver=False, include_dashboard=False,
             runtime_env={"env_vars": {"PYTHONPATH": paths,
                                       "GOSSAMER_TEST_CLUSTER": MARK.decode()}})
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    yield ray
    ray.shutdown()


def test_a_wrong_address() -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(InputError, match=f"no Ray cluster at '127.0.0.1:{port}'"):
        connect(f"127.0.0.1:{port}")


@pytest.mark.parametrize("kind", ["file", "plan"])
def test_rows_come_in_order(kind: str, cluster: Any, tmp_path: Path) -> None:
    model: Any = save(small(), tmp_path)
    if kind == "plan":
        model = compiled(small(), find("host"), tmp_path)
    x = images(50)
    data = cluster.data.from_items([{"x": row, "id": index} for index, row in enumerate(x)])
    rows = map_batches(data, model, batch=8, device="host", workers=2).take_all()
    assert [row["id"] for row in rows] == list(range(50)) and set(rows[0]) == {"id", "y"}
    assert_close(np.stack([row["y"] for row in rows]), expected(x))
    with pytest.raises(Exception, match="the data set has no column 'x' for this input of"):
        map_batches(cluster.data.from_items([{"z": 1}]), model, device="host").take_all()


def test_pictures_damaged_ones_and_a_lost_worker(cluster: Any, tmp_path: Path) -> None:
    model = save(small(), tmp_path)
    files = []
    for index in range(60):
        pixels = np.random.default_rng(index).integers(0, 256, (6, 5, 3), np.uint8)
        files.append(str(tmp_path / f"{index:03}.png"))
        Image.fromarray(pixels).save(files[-1])
    Path(files[7]).write_bytes(b"nonsense")
    data = cluster.data.from_items([{"file": file} for file in files]).repartition(12)
    mapped = map_pictures(data, model, PREPARE, batch=5, device="host", workers=2)
    rows: list[Any] = []
    for row in mapped.iter_rows():
        rows.append(row)
        if len(rows) == 3:
            _kill_a_worker()
    assert [row["file"] for row in rows] == files
    assert [row["error"][:12] for row in rows if row["error"]] == ["not an image"]
    plan = gossamer.compile(str(model), "host")
    for index, row in enumerate(rows):
        if index != 7:
            x = PREPARE(np.asarray(Image.open(files[index])))[None]
            assert_close(row["y"][None], plan(x))


def _kill_a_worker() -> None:
    """Kills one of the processes of this test's own cluster that compute pictures."""
    for _ in range(100):
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                title = (process / "cmdline").read_bytes()
                if b"_PictureWorker" in title and MARK in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    return
        time.sleep(0.05)
    raise AssertionError("no worker was found")


def test_training_is_shared_out(cluster: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    base, grid = MLP(hidden=(3,), epochs=3, device="host"), {"seed": range(12)}
    here = sweep(base, grid, x, y)
    there = sweep(base, grid, x, y, ray="auto", checkpoint=tmp_path / "kept")
    assert [row["config"] for row in there.rows] == list(range(12))
    for one, other in zip(here.networks, there.networks, strict=True):
        np.testing.assert_array_equal(one.coefs_[0], other.coefs_[0])
    files = sorted((tmp_path / "kept").glob("*.checkpoint"))
    assert len(files) == 12
    with pytest.raises(InputError, match="already has checkpoints; give resume=True"):
        sweep(base, grid, x, y, ray="auto", checkpoint=tmp_path / "kept")
    # networks whose files are gone are trained again, and the others are taken as they are
    for file in files[3:8]:
        file.unlink()
    again = sweep(base, grid, x, y, ray="auto", checkpoint=tmp_path / "kept", resume=True)
    for one, other in zip(here.networks, again.networks, strict=True):
        np.testing.assert_array_equal(one.coefs_[0], other.coefs_[0])


@pytest.mark.parametrize("name", ["host", "cuda", "cuda:1"])
@pytest.mark.parametrize("count", [None, 1, 2, 3, 5])
@pytest.mark.parametrize("gpus", [0, 1, 2, 8])
@pytest.mark.parametrize("processors", [0, 1, 2, 3, 4, 8, 16])
def test_workers_have_room_in_any_cluster(processors: int, gpus: int, count: int | None,
                                          name: str) -> None:
    resources = {kind: float(number) for kind, number in (("CPU", processors), ("GPU", gpus))
                 if number}
    room = max(processors - 1, 1) if name == "host" else gpus
    if not room:
        with pytest.raises(InputError, match="the cluster has no GPU"):
            Workers.of(resources, name, count)
        return
    workers = Workers.of(resources, name, count)
    assert workers.count == (room if count is None else min(count, room))
    assert workers.gpus == (0.0 if name == "host" else 1.0)
    # all processors but one are shared, and no worker takes more than one
    left = max(processors - 1, 0.5)
    assert workers.processors == min(1.0, left / workers.count)


def test_what_no_cluster_has() -> None:
    with pytest.raises(InputError, match="workers is 0, expected 1 or more"):
        Workers.of({"CPU": 8.0}, "host", 0)
    with pytest.raises(InputError, match=r"absent.onnx: No such file"):
        Shipped.of("absent.onnx", "host", None)


def test_one_worker_of_a_kind_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured()
    assert measured.ask("h200", "a") == (None, True)
    assert measured.ask("h200", "b") == (None, False)
    assert measured.ask("host", "b") == (None, True)
    measured.keep("h200", b"times")
    assert measured.ask("h200", "b") == (b"times", False)
    # a worker that was lost while it measured is taken the place of
    monkeypatch.setattr("gossamer.ray.data._LEASE_S", -1.0)
    measured.ask("new", "a")
    assert measured.ask("new", "b") == (None, True)


@pytest.mark.library_parts  # as the workers, which no fixture reaches
def test_the_verb_run_on_a_cluster(cluster: Any, tmp_path: Path) -> None:
    network = save_network(tmp_path / "tiny.onnx")
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(30):
        pixels = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:02}.png")
    (folder / "07.png").write_bytes(b"nonsense")
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    options = ["--preprocess", "unit", "--device", "host", "--batch", "4"]
    succeeds("run", network, folder, "-o", here, *options)
    said = succeeds("run", network, folder, "-o", there, *options, "--ray", "auto").stdout
    assert "device: ray (1 machine of a cluster)" in said and "30 pictures" in said
    assert there.read_text() == here.read_text()
    # what was interrupted goes on where it stopped
    lines = here.read_text().splitlines(keepends=True)
    there.write_text("".join(lines[:11]))
    assert "11 rows existed already" in succeeds(
        "run", network, folder, "-o", there, *options, "--ray", "auto", "--resume").stdout
    assert there.read_text() == here.read_text()
    table = tmp_path / "rows.parquet"
    succeeds("run", network, folder, "-o", table, *options, "--ray", "auto")
    from pyarrow import parquet

    assert parquet.read_table(table)["file"].to_pylist() == [
        str(folder / f"{index:02}.png") for index in range(30)]
