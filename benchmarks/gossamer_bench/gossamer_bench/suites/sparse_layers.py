"""The suite of pruned layers, one by one, with published shapes, densities, weights and masks."""

from __future__ import annotations

from functools import cache

import numpy as np

from gossamer_bench import sparse_data
from gossamer_bench.sparse_data import SparseLayer
from gossamer_bench.suites.layers import convolution, layer_case
from gossamer_bench.work import Files, Item

SUITE = "sparse-layers"
FORMS = (("direct_sparse", "untiled"), ("direct_sparse", "tiled"))
"""The two published kernels of direct sparse convolution, as pairs of an algorithm and a value of
`variant` in its configs. Each pair is a contender."""


def sparse_layers(batch: int, files: Files) -> list[Item]:
    """Returns convolutions with published sparse weights, one by one."""
    def item(sparse: SparseLayer) -> Item:
        @cache
        def sparsity() -> float:
            return float(np.mean(sparse.weights() == 0))

        return Item(SUITE, sparse.layer.name, batch, lambda setting: layer_case(
            SUITE, convolution(sparse.layer, sparse.weights()), batch, setting, forms=FORMS),
            is_layer=True, sparsity=sparsity)

    folder = sparse_data.check(SUITE, files.data, sparse_data.ALL)
    return [item(sparse) for sparse in sparse_data.published_layers(folder)]
