"""The verb `run` on tables of samples: a row for each."""

import csv

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.cli.command_line import save_network, succeeds
from tests.cli.picture_folders import RNG
from tests.tolerances import normalised_error, tolerance


@pytest.fixture
def dense(tmp_path):
    """A network of three numbers."""
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    return save_network(tmp_path / "dense.onnx", nodes=nodes, inputs=("N", 3),
                        outputs=(("y", ["N", 2]),), weights={"w": RNG.standard_normal((2, 3))})


@pytest.mark.parametrize("form", ["plain", "first", "last"])
def test_samples_of_a_table_become_rows(dense, tmp_path, form):
    x = RNG.standard_normal((50, 3)).astype(np.float32)
    with open(tmp_path / "samples.csv", "w") as file:
        file.write("a,b,c\n" if form == "plain" else "label,a,b,c\n" if form == "first"
                   else "a,b,c,class\n")
        for index, row in enumerate(x):
            cells = list(map(str, row.tolist()))
            label = [f"kind {index % 3}"]
            file.write(",".join({"plain": cells, "first": label + cells, "last": cells + label}[
                form]) + "\n")
    label = ("--label", "last") if form == "last" else ()
    out = tmp_path / "out.csv"
    result = succeeds("run", dense, tmp_path / "samples.csv", "--device", "host", "-o", out,
                      "--batch", 7, *label)
    assert "50 samples in" in result.stdout
    assert ("is taken as labels" in result.stderr) == (form != "plain")
    with open(out, newline="") as file:
        table = list(csv.DictReader(file))
    (expected,) = ReferenceEvaluator(str(dense)).run(None, {"x": x})
    y = np.float32([[line["y_0"], line["y_1"]] for line in table])
    assert normalised_error(y, expected) <= tolerance("network")
    assert [line["sample"] for line in table] == list(map(str, range(50)))
    if form != "plain":
        assert [line["label"] for line in table] == [f"kind {index % 3}" for index in range(50)]
    whole = out.read_bytes()
    out.write_bytes(whole[:len(whole) // 2])
    succeeds("run", dense, tmp_path / "samples.csv", "--device", "host", "-o", out, "--batch", 7,
             *label, "--resume")
    assert len(out.read_text().splitlines()) == 51


def test_a_table_without_labels_has_the_columns_of_the_one_trained_on(tmp_path):
    """A network that was trained on a table with gaps and texts takes rows that have no label."""
    rows = [f"{'yes' if index % 2 else 'no'},{index % 2 * 5 + 1},{'ab'[index % 2]}"
            for index in range(40)]
    (tmp_path / "people.csv").write_text("\n".join(["buys,age,city", *rows, "no,,a"]) + "\n")
    net = tmp_path / "net.onnx"
    succeeds("train", tmp_path / "people.csv", "--impute", "zero", "--one-hot", "--device", "host",
             "--epochs", "30", "-o", net)
    (tmp_path / "new.csv").write_text("city,age\na,1\nb,6\na,\n")
    out = tmp_path / "rows.csv"
    succeeds("run", net, tmp_path / "new.csv", "--device", "host", "-o", out)
    assert [row["name_1"] for row in csv.DictReader(out.open())] == ["no", "yes", "no"]
