"""`--device` with several devices: run, evaluate and compile give what one device gives."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.cli.command_line import fails, succeeds

TWO = ("--device", "host,host")


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for label in ("0", "1"):
        (folder / label).mkdir(parents=True)
        for index in range(20):
            pixels = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{index:02}.png")
    return folder


def test_rows_come_in_order_from_both(tiny, photos, tmp_path):
    for device, name in (("host", "one.jsonl"), ("host,host", "two.jsonl"),
                         ("host:all", "all.jsonl")):
        said = succeeds("run", tiny, photos, "-o", tmp_path / name, "--batch", "3",
                        "--device", device).stdout
        assert f"device: {device.replace(':all', '').replace(',', ', ')} (" in said
    one, two, every = ((tmp_path / name).read_text() for name in ("one.jsonl", "two.jsonl",
                                                                  "all.jsonl"))
    assert one == two == every and one.count("\n") == 40


def test_run_and_evaluate(tiny, photos):
    files = sorted(map(str, photos.glob("0/*.png")))
    one, two = (json.loads(succeeds("run", tiny, *files, "--batch", "2", "--json",
                                    "--device", device).stdout)
                for device in ("host", "host,host"))
    assert one["results"] == two["results"] and two["device"] == "host, host"
    right = json.loads(succeeds("evaluate", tiny, photos, "--batch", "3", "--json",
                                "--device", "host").stdout)
    shared = json.loads(succeeds("evaluate", tiny, photos, "--batch", "3", "--json",
                                 *TWO).stdout)
    assert {key: right[key] for key in right if key not in ("seconds", "device")} == {
        key: shared[key] for key in shared if key not in ("seconds", "device")}


def test_a_compiled_plan_runs_on_two(tiny, photos, tmp_path):
    plan = tmp_path / "tiny.plan"
    succeeds("compile", tiny, "-o", plan, "--effort", "quick", *TWO)
    photo = photos / "0" / "00.png"
    assert "device: host, host (" in succeeds("run", plan, photo, *TWO).stdout


def test_verbs_for_one_device(tiny, photos):
    assert "detect runs on one device" in fails(2, "detect", tiny, photos / "0" / "00.png", *TWO)
    assert "no API of that name" in fails(2, "run", tiny, photos, "--device", "tpu:all",
                                          "--preprocess", "unit")
