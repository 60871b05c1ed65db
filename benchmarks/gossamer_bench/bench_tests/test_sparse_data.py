"""Tests of published sparse weights: the folder, its files, and errors in them."""

from __future__ import annotations

import tarfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from gossamer.errors import InputError, ModelError
from gossamer_bench import sparse_data
from gossamer_bench.sparse_data import ALL, SKIMCAFFE, check, masked_resnet50, published_layers
from tests.bench.verb import HEADING, LINES, tiny_folder


def test_a_folder_and_all_its_files_are_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"suite layers: needs --data FOLDER, .* with "
                                         r"alexnet_pruned, resnet50_masks, resnet50_pruned_3x3"):
        check("layers", None, ALL)
    tiny_folder(tmp_path)
    assert check("layers", tmp_path, ALL) == tmp_path
    for name in ALL[1:3]:
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match=rf"--data .*: has no file {ALL[1]} and 1 more; "
                                         r"benchmarks/README.md"):
        check("layers", tmp_path, ALL)


@pytest.mark.parametrize(("line", "number"), [
    ("tiny,3x3,8,12,3,7,7,1,1,2,x", 3),
    ("tiny,3x3,8,12,3,7,6,1,1,2,80", 3),
    ("tiny,3x3,8,12,3,7,7,0,1,2,80", 3),
    ("tiny,3x3,8,12,3,7,7,1,1,2,100", 3),
    ("tiny,3x3,8", 3),
])
def test_a_line_that_is_no_layer_is_named(tmp_path: Path, line: str, number: int) -> None:
    folder = tiny_folder(tmp_path, LINES[0], line)
    with pytest.raises(InputError, match=rf"skimcaffe_layers\.csv: line {number} is no layer; "
                                         r"expected net, layer, C, "):
        list(published_layers(folder))


def test_layers_that_were_not_pruned_are_left_out(tmp_path: Path) -> None:
    names = [sparse.layer.name for sparse in published_layers(tiny_folder(tmp_path))]
    assert [name for name in names if name.startswith("tiny")] == ["tiny/3x3"]


def test_what_does_not_fit_a_layer_is_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    layers = {sparse.layer.name: sparse for sparse in published_layers(folder)}
    conv2 = folder / "alexnet_pruned/coo_conv2.mtx"
    conv2.write_text("%%MatrixMarket matrix coordinate real general\n2 25 1\n1 1 1.5\n")
    with pytest.raises(ModelError, match=r"coo_conv2.mtx: holds weights 2 x 1 x 5 x 5, expected "
                                         r"256 x 48 x 5 x 5 of alexnet/conv2"):
        layers["alexnet/conv2"].weights()
    filters = folder / "resnet50_pruned_3x3/filter_90_bg1.npy"
    with pytest.raises(ModelError, match=r"filter_90_bg1.npy: cannot be read as a .npy array"):
        layers["resnet50-filters/90_bg1"].weights()
    np.save(filters, np.ones((64, 9), np.float32))
    with pytest.raises(ModelError, match=r"filter_90_bg1.npy: expected float32 of shape 64 x 576"):
        layers["resnet50-filters/90_bg1"].weights()


def masks(folder: Path, share: str, pixels: str, **files: str) -> None:
    with tarfile.open(folder / f"resnet50_masks/magnitude_{share}.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{name}.smtx")
            info.size = len(text)
            archive.addfile(info, BytesIO(text.encode()))
    (folder / "resnet50_masks/output_pixels.txt").write_text(pixels)


def test_masks_are_checked_against_the_layer(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    columns = " ".join(["0"] * 1001)
    masks(folder, "0.90", "final_dense,4\n", final_dense=f"1000, 2048, 0\n{columns}\n\n")
    layers = masked_resnet50(folder, "0.90")
    with pytest.raises(ModelError, match="has no mask for conv1 of ResNet-50"):
        layers["conv1"].weights()
    with pytest.raises(ModelError, match="final_dense has 4 output pixels, expected 1"):
        layers["fc1000"].weights()


def test_an_order_of_columns_by_hand(tmp_path: Path) -> None:
    """The column of a weight in this layer is (r * 3 + s) * 64 + c, so the nonzeros of output 0 are
    tap (0, 0) of channel 5 and tap (1, 2) of channel 0."""
    folder = tiny_folder(tmp_path)
    offsets = " ".join(["0"] + ["2"] * 64)
    masks(folder, "0.98", "bottleneck_2_block_group_projection_block_group1,3136\n",
          bottleneck_2_block_group_projection_block_group1=f"64, 576, 2\n{offsets}\n5 320\n")
    weight = masked_resnet50(folder, "0.98")["res2a_branch2b"].weights()
    assert [tuple(map(int, index)) for index in np.argwhere(weight)] == [(0, 0, 1, 2),
                                                                         (0, 5, 0, 0)]


@pytest.mark.slow
def test_the_published_files_are_the_layers_they_should_be(shared: Path) -> None:
    folder = check("layers", shared / "data", ALL)
    layers = list(published_layers(folder))
    assert Counter(sparse.layer.name.split("/")[0] for sparse in layers) == {
        "caffenet": 4, "googlenet": 19, "resnet50": 16, "alexnet": 5, "resnet50-filters": 6,
        "resnet50-dlmc-0.90": 54, "resnet50-dlmc-0.98": 54}
    densities = {}
    for sparse in layers:
        weight = sparse.weights()
        assert weight.shape == sparse.layer.weight_shape and weight.dtype == np.float32
        densities[sparse.layer.name] = np.count_nonzero(weight) / weight.size
    for name, (layer, density) in sparse_data.skimcaffe(folder).items():
        if name in densities:
            assert densities[name] == pytest.approx(density, abs=1 / np.prod(layer.weight_shape))
    for number, sparsity in enumerate((59.6, 88.6, 95.1, 93.9, 90.8), 1):
        assert densities[f"alexnet/conv{number}"] == pytest.approx(1 - sparsity / 100, abs=5e-4)
    for name, density in densities.items():
        if "dlmc" in name:
            assert density == pytest.approx(1 - float(name[14:18]), abs=5e-4)
    assert (folder / SKIMCAFFE).read_text().startswith(HEADING)
