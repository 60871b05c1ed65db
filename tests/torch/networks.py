"""Networks of torchvision and timm in one line each, beside eager torch.

    python -m tests.torch.networks --count 40 --seed 0 --batch 1,3,64 --seconds 400 -o FILE

Five networks of torchvision come first, then networks of timm below 15 M parameters that are drawn
by the seed, all with drawn weights and the statistics of drawn pictures. Where torch sees a CUDA
device they are there, in float16 and channels_last, and may be no further from float64 than twice
torch's float16; else they are on the host in float32, and equal to eager torch to 1e-4. Of a
network that has one form for each batch size each is optimised.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import gossamer
from gossamer.torch.captured import as_array
from gossamer_bench.modules import with_statistics
from tests.networks.__main__ import PICTURES, drawn, made, output
from tests.tolerances import WHOLE_NETWORK, WORSE_THAN_OTHERS, normalised_error

TORCHVISION = ("resnet18", "resnet50", "mobilenet_v2", "shufflenet_v2_x1_0", "efficientnet_b0")
MOST_PARAMETERS = 15_000_000


def run(library: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the row of a network; its outcome is "ok", "too large", "not made: ...",
    "refused: ..." or "wrong"."""
    row: dict[str, Any] = {"library": library, "name": name, "outcome": "ok"}
    on_gpu = torch.cuda.is_available()
    place: dict[str, Any] = {"device": "cuda", "dtype": torch.float16,
                             "memory_format": torch.channels_last} if on_gpu else {}
    try:
        module = made(library, name, MOST_PARAMETERS if library == "timm" else None)
        if module is None:
            return {**row, "outcome": "too large"}
        size = getattr(module, "default_cfg", {}).get("input_size", (3, 224, 224))
        if options.size:
            size = (size[0], options.size, options.size)
        generator = torch.Generator().manual_seed(1)
        module = module.to("cuda" if on_gpu else "cpu")
        module = with_statistics(module, torch.randn((PICTURES, *size), generator=generator).to(
            next(module.parameters()).device)).to(**place)
    except Exception as error:
        return {**row, "outcome": f"not made: {str(error).splitlines()[0][:150]}"}
    try:
        start = time.monotonic()
        fast = gossamer.optimize(module, torch.randn((1, *size), generator=generator).to(**place),
                                 effort=options.effort, budget=options.budget)
        row |= {"size": size[-1], "optimize_s": round(time.monotonic() - start, 1)}
        for batch in options.batch:
            x = torch.randn((batch, *size), generator=generator).to(**place)
            if fast._fixed:
                row["fixed"] = fast._fixed
                fast = gossamer.optimize(module, x, effort=options.effort, budget=options.budget)
            start = time.monotonic()
            y = as_array(fast(x))
            row[f"seconds_b{batch}"] = round(time.monotonic() - start, 1)
            with torch.no_grad():
                theirs = as_array(module(x))
            if on_gpu:
                exact = output(module, x, torch.float64)
                error = normalised_error(y, exact)
                allowed = WORSE_THAN_OTHERS * normalised_error(theirs, exact)
            else:
                error, allowed = normalised_error(y, theirs), WHOLE_NETWORK["fp32"]
            row |= {f"error_b{batch}": error, f"allowed_b{batch}": allowed}
            if not error <= allowed:
                row["outcome"] = "wrong"
        row["onnxruntime"] = sum(each["op"] == "onnx_part" for each in fast.report(batch).rows)
        row["on_host"] = sum(each["device"] == "host" for each in fast.report(batch).rows)
    except Exception as error:
        if not isinstance(error, gossamer.errors.GossamerError):
            traceback.print_exc()
        return {**row, "outcome": f"refused: {type(error).__name__}: {str(error)[:300]}"}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torch.networks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="networks of timm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0,
                        help="networks of the order that are left out")
    parser.add_argument("--names", default="", help="networks instead, such as timm:tinynet_d")
    parser.add_argument("--batch", type=lambda text: list(map(int, text.split(","))),
                        default=[1, 3, 64])
    parser.add_argument("--size", type=int, help="height and width of the pictures (default: the "
                                                 "network's own); what takes no other is left out")
    parser.add_argument("--effort")
    parser.add_argument("--budget", type=float)
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="no network is begun afterwards")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.names:
        order = [tuple(name.split(":")) for name in options.names.split(",")]
    else:
        order = [("torchvision", name) for name in TORCHVISION]
        order += [pair for pair in drawn(options.seed) if pair[0] == "timm"]
    warnings.simplefilter("ignore")
    start = time.monotonic()
    rows: list[dict[str, Any]] = []
    number = options.first
    for library, name in order[options.first:]:
        if time.monotonic() - start > options.seconds or sum(
                row["library"] == "timm" for row in rows) >= options.count:
            break
        number += 1
        row = run(library, name, options)
        gc.collect()
        if row["outcome"].startswith(("too large", "not made")):
            continue
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.output:
            with options.output.open("a") as file:
                file.write(json.dumps(row) + "\n")
    outcomes = Counter(row["outcome"].split(":")[0] for row in rows)
    print(f"{len(rows)} networks, up to number {number} of the order: {dict(outcomes)}, "
          f"{time.monotonic() - start:.0f} s")
    return 0 if set(outcomes) <= {"ok"} else 1


if __name__ == "__main__":
    raise SystemExit(main())
