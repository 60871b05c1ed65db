"""Exports the networks of tests/networks/table.py by both exporters of PyTorch.

    python -m tests.networks.export FOLDER

writes FOLDER/EXPORTER/LIBRARY-NAME.onnx with drawn weights and, where the exporter can, an open
batch. FOLDER/exports.jsonl says what became of each; what it names is not exported again.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.networks.rows import append, program, rows_of
from tests.networks.table import Network, networks

EXPORTERS = ("torchscript", "dynamo")
OPSET = {"torchscript": 17, "dynamo": 18}
_MOST_PARAMETERS = 40_000_000
_BATCH = 2


def export(network: Network, exporter: str, path: Path) -> str:
    """Writes a network to a file, and returns what became of it: "ok", "ok, batch 1" where the
    exporter fixes the batch, or why it cannot export it."""
    torch.manual_seed(0)
    try:
        module, shapes = network.make()
        module.eval()
    except Exception as error:
        return f"cannot be made: {_line(error)}"
    if sum(parameter.numel() for parameter in module.parameters()) > _MOST_PARAMETERS:
        return "has too many parameters"
    path.parent.mkdir(parents=True, exist_ok=True)
    failure = ""
    for batch in (_BATCH, 1):
        inputs = tuple(torch.randint(1, 99, (batch, *shape)) if network.words
                       else torch.randn(batch, *shape) for shape in shapes)
        try:
            with (warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()),
                  contextlib.redirect_stderr(io.StringIO())):
                warnings.simplefilter("ignore")
                _write(module, inputs, exporter, path, is_open=batch == _BATCH)
            return "ok" if batch == _BATCH else "ok, batch 1"
        except Exception as error:
            failure = failure or _line(error)
    path.unlink(missing_ok=True)
    return f"not exported: {failure}"


def _write(module: Any, inputs: tuple[Any, ...], exporter: str, path: Path, *,
           is_open: bool) -> None:
    names = [f"x{index}" for index in range(len(inputs))]
    options: dict[str, Any] = {}
    if is_open and exporter == "dynamo":
        options["dynamic_shapes"] = ([{0: torch.export.Dim("N")} for _ in names],) if (
            _takes_any_number(module)) else [{0: torch.export.Dim("N")} for _ in names]
    elif is_open:
        options["dynamic_axes"] = {name: {0: "N"} for name in (*names, "y")}
    torch.onnx.export(module, inputs, str(path), opset_version=OPSET[exporter], input_names=names,
                      output_names=["y"], dynamo=exporter == "dynamo",
                      **({"external_data": False, "verbose": False} if exporter == "dynamo"
                         else {}), **options)


def _takes_any_number(module: Any) -> bool:
    code = module.forward.__code__
    return bool(code.co_flags & 4)


def _line(error: Exception) -> str:
    # messages may have colours
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:120] if text else ''}"


def main() -> None:
    parser = program("tests.networks.export", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="export only networks whose library and name hold this")
    parser.add_argument("--exporter", choices=EXPORTERS, action="append")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    log = options.folder / "exports.jsonl"
    done = {(row["exporter"], row["library"], row["name"]) for row in rows_of(log)}
    for network in networks():
        for exporter in options.exporter or EXPORTERS:
            if (exporter, network.library, network.name) in done or (
                    options.only not in f"{network.library} {network.name}"):
                continue
            path = options.folder / exporter / f"{network.library}-{network.name}.onnx"
            start = time.monotonic()
            outcome = export(network, exporter, path)
            append(log, {"library": network.library, "name": network.name, "exporter": exporter,
                         "outcome": outcome, "seconds": round(time.monotonic() - start, 1)})
            print(f"{exporter:12} {network.library:12} {network.name}: {outcome}", flush=True)


if __name__ == "__main__":
    main()
