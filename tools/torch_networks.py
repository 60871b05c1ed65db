"""Tests the backend gossamer on networks of timm and transformers.

    python tools/torch_networks.py --seed 1 --timm 40 --transformers 20 --json rows.jsonl

The seed selects the networks, their weights and their inputs. Networks of timm have at most
MOST_PARAMETERS weights, and inputs of sizes 160 and 200 at batch 3. Models of transformers have the
default configurations of their classes with small sizes. Each network is computed on the processor
by eager torch and by torch.compile(backend="gossamer"), and the results are compared. Networks that
eager torch cannot compute do not count. The exit status is 1 if a result is wrong, a network needs
too long, or an exception is raised that eager torch does not raise.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.torch_suite import results

BATCH = 3
SIZES = (160, 200)
MOST_PARAMETERS = 30_000_000
TOLERANCE = 1e-4
"""Largest allowed difference in float32, relative to the largest number of a result."""

TINY = {"hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32,
        "embedding_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 2, "n_layer": 2,
        "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
        "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "d_kv": 8, "intermediate_size": 37, "d_ff": 37, "n_inner": 37,
        "ffn_dim": 37, "hidden_dim": 37, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37,
        "vocab_size": 99, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64,
        "image_size": 32, "patch_size": 8, "num_experts": 4, "n_routed_experts": 4,
        "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
"""Small sizes for configurations of transformers, by attribute name."""


def small(made: Callable[[], Any]) -> Any:
    """Return a network in evaluation mode. Raises ValueError for too many weights."""
    import torch

    with torch.device("meta"):
        count = sum(weight.numel() for weight in made().parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count / 1e6:.0f} million weights")
    return made().eval()


def of_timm(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """Return a network of timm, and its inputs at each size."""
    import timm
    import torch

    network = small(lambda: timm.create_model(name))
    return network, [{"x": torch.randn(BATCH, 3, size, size)} for size in SIZES]


def of_transformers(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """Return a tiny model of transformers, and its inputs."""
    import torch
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[name]
    first = kind()
    config = kind(**{key: value for key, value in TINY.items()
                     if isinstance(getattr(first, key, None), int)})
    config.pad_token_id = None if getattr(config, "pad_token_id", None) is None else 0
    model = small(lambda: AutoModel.from_config(config))
    names = inspect.signature(model.forward).parameters
    inputs: dict[str, Any] = {}
    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", None)
        inputs["pixel_values"] = torch.randn(
            BATCH, getattr(config, "num_channels", 3), *([size] * 2 if isinstance(size, int)
                                                         else size or [64, 64]))
    elif model.main_input_name == "input_ids":
        inputs["input_ids"] = torch.randint(3, 99, (BATCH, 13))
        if "decoder_input_ids" in names:
            inputs["decoder_input_ids"] = torch.randint(3, 99, (BATCH, 7))
    else:
        raise ValueError(f"its input is {model.main_input_name}")
    if "use_cache" in names:
        inputs["use_cache"] = False
    return model, [inputs]


def outcome(name: str, seed: int) -> dict[str, Any]:
    """Compute a network, and return its row."""
    import torch

    from gossamer.torch.backend import reports

    row: dict[str, Any] = {"test": name, "result": "right", "text": ""}
    library, _, network_name = name.partition(":")
    torch.manual_seed(seed)
    try:
        network, calls = (of_timm if library == "timm" else of_transformers)(network_name)
        with torch.no_grad():
            expected = [network(**call) for call in calls]
    except Exception as error:
        return row | {"result": "not run", "text": f"{type(error).__name__}: {error}"[:300]}
    reports.clear()
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            compiled = torch.compile(network, backend="gossamer", dynamic=False)
            actual = [compiled(**call) for call in calls]
        row["difference"] = max(map(difference, actual, expected))
        if not row["difference"] <= TOLERANCE:
            row |= {"result": "wrong", "text": f"by {row['difference']:.3g} of the largest"}
    except Exception as error:
        row |= {"result": "exception", "text": f"{type(error).__name__}: {error}"[:2000]}
    return row | {"operators": sum(report.operators for report in reports),
                  "taken": sum(report.taken for report in reports),
                  "left": [[left.operator, left.reason] for report in reports
                           for left in report.left]}


def difference(actual: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest number.

    Returns infinity if they differ in type, dtype, shape, or the positions of NaN and infinities.
    """
    import torch

    worst = 0.0
    ours, theirs = map(torch.utils._pytree.tree_leaves, (actual, expected))
    if type(actual) is not type(expected) or len(ours) != len(theirs):
        return float("inf")
    for one, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            continue
        if one.dtype != other.dtype or one.shape != other.shape:
            return float("inf")
        if other.numel():
            one, other = one.double(), other.double()
            if not torch.equal(one.isfinite(), other.isfinite()):
                return float("inf")
            error = (one - other).abs().nan_to_num(0, 0, 0).max()
            worst = max(worst, float(error / other.abs().nan_to_num(0, 0, 0).max().clamp(min=1e-6)))
    return worst


def work(seed: int, names: list[str], rows: Any) -> None:
    """Compute networks; queue each name before its row."""
    import torch

    warnings.simplefilter("ignore")
    with_operators()
    torch.set_num_threads(1)
    for name in names:
        rows.put(name)
        rows.put(outcome(name, seed))
    rows.put(None)


def with_operators() -> None:
    """Declare operators of torchvision that timm only imports.

    torchvision's build for GPUs cannot load them with torch's build for processors.
    """
    import torch

    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")


def names_of(library: str) -> list[str]:
    if library == "timm":
        import timm

        return [f"timm:{name}" for name in timm.list_models()]
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return [f"transformers:{name}" for name in MODEL_MAPPING_NAMES]


def rows_of(library: str, count: int, seed: int, match: str) -> Iterator[dict[str, Any]]:
    """Yield rows until eager torch has computed `count` networks."""
    names = [name for name in names_of(library) if match in name]
    random.Random(seed).shuffle(names)
    rows = results(seed, names, work)
    while count > 0 and (row := next(rows, None)):
        count -= row["result"] != "not run"
        yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timm", type=int, default=40, help="number of networks of timm")
    parser.add_argument("--transformers", type=int, default=20,
                        help="number of models of transformers")
    parser.add_argument("--match", default="", help="only networks with this text in their names")
    parser.add_argument("--json", type=Path, help="file to which a row per network is appended")
    options = parser.parse_args()
    with_operators()
    counts: Counter[str] = Counter()
    for library in ("transformers", "timm"):
        reasons: Counter[str] = Counter()
        operators = taken = 0
        for row in rows_of(library, getattr(options, library), options.seed, options.match):
            counts[row["result"]] += 1
            print(f"{row['test']}: {row['result']}", row["text"],
                  f"{row.get('taken', 0)} of {row.get('operators', 0)} operators, "
                  f"difference {row.get('difference', 0):.1g}"
                  if row["result"] == "right" else "", flush=True)
            operators += row.get("operators", 0)
            taken += row.get("taken", 0)
            reasons.update(f"{operator}: {reason}" for operator, reason in row.get("left", []))
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        print(f"{library}: plans compute {taken} of {operators} operators "
              f"({taken / max(operators, 1):.0%}); left to torch:")
        for reason, count in reasons.most_common():
            print(f"    {count} {reason}")
    print(", ".join(f"{count} {result}" for result, count in counts.most_common()))
    return int(bool(counts["wrong"] + counts["exception"] + counts["took too long"]))


if __name__ == "__main__":
    raise SystemExit(main())
