"""Plans networks of timm and torchvision that no list names, and compares them with PyTorch.

    python -m tests.networks --count 40 --seed 0 --device cuda:0 --batch 1,8 -o FILE

Networks below 20 M parameters are drawn by the seed. Their batch norms get the statistics that they
have on drawn pictures, so that numbers neither vanish nor explode. Each is exported to ONNX at
opset 17 and planned; its error against PyTorch in float64 may be twice that of PyTorch in the same
precision. Networks that cannot be exported are named and replaced by others.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import gossamer
from gossamer.errors import UnsupportedError
from gossamer_bench.modules import (
    MOST_PARAMETERS,
    TIMM,
    created,
    parameter_count,
    shuffled,
    with_statistics,
)
from tests.tolerances import WHOLE_NETWORK, WORSE_THAN_OTHERS, normalised_error

PICTURES = 16


def drawn(seed: int) -> list[tuple[str, str]]:
    """Returns the libraries and names of all networks in an order drawn by the seed."""
    return [("timm", name.removeprefix(TIMM)) if name.startswith(TIMM) else ("torchvision", name)
            for name in shuffled(seed)]


def made(library: str, name: str) -> Any:
    """Returns a network with drawn weights; None where it has too many parameters."""
    import torch

    full = f"{TIMM}{name}" if library == "timm" else name
    if parameter_count(full) > MOST_PARAMETERS:
        return None
    torch.manual_seed(0)
    return created(full)


def output(module: Any, x: Any, dtype: Any) -> np.ndarray:
    import copy

    import torch

    with torch.no_grad():
        y = copy.deepcopy(module).to(dtype)(x.to(dtype))
    return y.double().cpu().numpy()


def run(library: str, name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the row of a network; its outcome is "ok", "too large", "not exported: ...",
    "refused: ...", "failed: ..." or "wrong"."""
    import torch

    row: dict[str, Any] = {"library": library, "name": name, "outcome": "ok"}
    torch_device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        module = made(library, name)
        if module is None:
            return {**row, "outcome": "too large"}
        size = getattr(module, "default_cfg", {}).get("input_size", (3, 224, 224))
        if library == "torchvision" and "inception" in name:
            size = (3, 299, 299)
        generator = torch.Generator().manual_seed(1)
        pictures = torch.randn((PICTURES, *size), generator=generator).to(torch_device)
        module = with_statistics(module.to(torch_device), pictures)
        path = folder / f"{name}.onnx"
        with warnings.catch_warnings(action="ignore"):
            torch.onnx.export(module.cpu(), pictures[:2].cpu(), str(path), opset_version=17,
                              input_names=["x"], output_names=["y"], dynamo=False,
                              dynamic_axes={"x": {0: "N"}, "y": {0: "N"}})
        module = module.to(torch_device)
    except Exception as error:
        return {**row, "outcome": f"not exported: {str(error).splitlines()[0][:150]}"}
    half = torch.float16 if options.precision == "fp16" else torch.float32
    plan = None
    for batch in options.batch:
        start = time.monotonic()
        x = torch.randn((batch, *size), generator=generator).to(torch_device)
        try:
            plan = plan or gossamer.compile(str(path), options.device, effort=options.effort,
                                            precision=options.precision)
            y = np.asarray(plan(x.cpu().numpy()), np.float64)
            # in other orders, what an earlier call has left in memory is no right result
            orders = [np.roll(np.arange(batch), turn) for turn in range(1, min(batch, 4))]
            others = [np.asarray(plan(x.cpu().numpy()[order]), np.float64) for order in orders]
        except UnsupportedError as error:
            return {**row, "outcome": f"refused: {str(error)[:200]}"}
        except Exception as error:
            print(traceback.format_exc(), flush=True)
            return {**row, "outcome": f"failed: {type(error).__name__}: {str(error)[:200]}"}
        expected = output(module, x, torch.float64)
        error = max([normalised_error(y, expected), *(
            normalised_error(other, expected[order])
            for other, order in zip(others, orders, strict=True))])
        theirs = normalised_error(output(module, x, half), expected)
        row |= {f"error_b{batch}": error, f"torch_error_b{batch}": theirs,
                f"seconds_b{batch}": round(time.monotonic() - start, 1),
                f"us_b{batch}": plan.report(batch).end_to_end_us}
        if not error <= max(WORSE_THAN_OTHERS * theirs, WHOLE_NETWORK[options.precision]):
            row["outcome"] = "wrong"
    path.unlink()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0,
                        help="networks of the order that are left out")
    parser.add_argument("--names", default="",
                        help="networks that are planned instead, such as timm:tinynet_d")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--precision", default="fp16", choices=WHOLE_NETWORK)
    parser.add_argument("--batch", type=lambda text: list(map(int, text.split(","))),
                        default=[1, 8])
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="no network is begun afterwards")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    start = time.monotonic()
    number = options.first
    with tempfile.TemporaryDirectory() as folder:
        for library, name in ([tuple(each.split(":")) for each in options.names.split(",")]
                              if options.names else drawn(options.seed)[options.first:]):
            tried = [row for row in rows if not row["outcome"].startswith(("too", "not exp"))]
            if len(tried) >= options.count or time.monotonic() - start > options.seconds:
                break
            number += 1
            rows.append(run(library, name, options, Path(folder)))
            if rows[-1]["outcome"] != "too large":
                print(json.dumps(rows[-1]), flush=True)
            if options.output:
                options.output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tried = [row for row in rows if not row["outcome"].startswith(("too", "not exp"))]
    outcomes = [row["outcome"].split(":")[0] for row in tried]
    print(f"{len(tried)} networks, the first {number} of the order: "
          f"{ {kind: outcomes.count(kind) for kind in sorted(set(outcomes))} }, "
          f"{time.monotonic() - start:.0f} s")
    return 0 if set(outcomes) <= {"ok", "refused"} else 1


if __name__ == "__main__":
    raise SystemExit(main())
