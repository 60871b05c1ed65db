"""The verb `prune`: write a network as ONNX, with its smallest weights set to zero."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import onnx
import typer
from rich.console import Console

from gossamer.advise import advise, check_speed_up
from gossamer.cli import arguments
from gossamer.cli.convert import naming, onnx_form, serialised
from gossamer.cli.report import evaluate_hint
from gossamer.errors import InputError, ModelError, one_of
from gossamer.io import output_files, terminal
from gossamer.io.output_files import replacing
from gossamer.io.text import shape_text, share_text
from gossamer.model.prune import PATTERNS, SCOPES, PrunedLayer, check_sparsity, prune
from gossamer.ops.algorithm import PRECISIONS
from gossamer.plan.candidate import counted


def prune_(
    model: arguments.ModelArgument,
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="OUT.onnx", help="File to write.")],
    sparsity: Annotated[float | None, typer.Option(
        metavar="0.9", help="Fraction of weights to set to zero, from 0 to below 1.")] = None,
    per_layer: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Sparsities of single layers, instead of --sparsity: a .csv file "
                             "with lines `layer, sparsity`, or a .json object.")] = None,
    scope: Annotated[str | None, typer.Option(
        help="Apply --sparsity to all layers together (global) or to each layer (layer) (default: "
             "global).")] = None,
    pattern: Annotated[str, typer.Option(
        help="Sparsity pattern: unstructured; 2:4 (two of every four weights along the input "
             "channels); channels (whole filters, of smallest norm).")] = "unstructured",
    speed_up: Annotated[float | None, typer.Option(
        "--speed-up", metavar="2",
        help="Measure the network on --device like `gossamer advise`, and choose sparsities with "
             "few zeros for this speed-up.")] = None,
    device: arguments.DeviceOption = None,
    batch: Annotated[int | None, typer.Option(
        min=1, help="Batch size for --speed-up (default: as for `gossamer advise`).")] = None,
    precision: Annotated[str | None, typer.Option(
        help="Lowest precision allowed, for --speed-up (default: fp32).")] = None,
    keep: Annotated[list[str] | None, typer.Option(
        metavar="LAYER", help="Do not prune this layer. May be repeated.")] = None,
    depthwise: Annotated[bool, typer.Option(
        "--depthwise", help="Prune depthwise convolutions too.")] = False,
    weights: arguments.WeightsOption = None,
    as_json: arguments.JsonOption = False,
) -> None:
    """Set the smallest weights of convolutions and matrix products to zero.

    Writes an ONNX file with the graph of MODEL, in which only weights have changed.
    """
    if speed_up is None:
        _check_sparsity(sparsity, per_layer, scope, pattern)
        _check_absent(device=device, batch=batch, precision=precision)
    else:
        _check_speed_up(speed_up, sparsity, per_layer, scope, pattern, precision)
    read = onnx_form(model, weights)
    sparsities = {} if per_layer is None else read_sparsities(per_layer)
    output_files.check_file("--output", output, ".onnx",
                            filter(None, (model, weights, per_layer)))
    if speed_up is not None:
        sparsities = _measured_sparsities(model, read, speed_up, keep or (), device, batch,
                                          precision or "fp32")
    network = read()
    with _naming_options(model, per_layer, keep):
        layers = prune(network, sparsity, sparsities, scope=scope or "global", depthwise=depthwise,
                       pattern=pattern, keep=keep or ())
    if all(layer.kept for layer in layers):
        raise InputError(f"{model}: has no weights to prune" + (
            f" ({layers[0].name!r}: {layers[0].kept})" if layers else
            ": no convolution and no matrix product"))
    content = serialised(model, network)
    with replacing(output) as file:
        file.write(content)
    if all(layer.after == layer.before for layer in layers):
        terminal.notice(f"nothing was pruned: {model} already has that many zeros")
    for layer in layers:
        if not layer.after and layer.before:
            terminal.notice(f"layer {layer.name!r}: all weights are zero; set a lower sparsity "
                            "with --per-layer", "warning")
    _report(model, output, layers, as_json)


@contextmanager
def _naming_options(model: str, per_layer: Path | None, keep: Sequence[str] | None
                    ) -> Iterator[None]:
    """Prefix errors of prune() in a `with` block with the option or file at fault."""
    try:
        yield
    except InputError as error:
        names = [*([] if per_layer is None else [f"--per-layer {per_layer}"]),
                 *(["--keep"] if keep else [])]
        raise InputError(f"{' or '.join(names)}: {error}") from None
    except ModelError as error:
        raise ModelError(f"{model}: {error}") from None


def _check_sparsity(sparsity: float | None, per_layer: Path | None, scope: str | None,
                    pattern: str) -> None:
    """Raise InputError for missing, invalid or conflicting sparsity options."""
    arguments.check_choice("--pattern", pattern, PATTERNS)
    if pattern == "2:4":
        if sparsity not in (None, 0.5) or per_layer is not None:
            raise InputError("--pattern 2:4: makes half of the weights zero; omit --sparsity and "
                             "--per-layer")
    elif sparsity is None and per_layer is None:
        raise InputError("expected --sparsity, --per-layer or both")
    if sparsity is not None and (reason := check_sparsity(sparsity)) is not None:
        raise InputError(f"--sparsity {sparsity:g}: {reason}")
    if scope is not None:
        arguments.check_choice("--scope", scope, SCOPES)
    if scope == "global" and pattern != "unstructured":
        raise InputError(f"--scope global: --pattern {pattern} prunes each layer separately; omit "
                         "--scope")
    if scope is not None and sparsity is None:
        raise InputError(f"--scope {scope}: needs --sparsity")


def _check_absent(**options: object) -> None:
    """Raise InputError for options that have no effect without --speed-up.

    options: the values by the names of the options; None if an option is not set.
    """
    for name, value in options.items():
        if value is not None:
            raise InputError(f"--{name} {value}: needs --speed-up")


def _check_speed_up(speed_up: float, sparsity: float | None, per_layer: Path | None,
                    scope: str | None, pattern: str, precision: str | None) -> None:
    """Raise InputError for a wrong --speed-up or --precision, and for conflicting options.

    Options that set sparsities conflict with --speed-up.
    """
    if (reason := check_speed_up(speed_up)) is not None:
        raise InputError(f"--speed-up {speed_up:g}: {reason}")
    given = {"--sparsity": sparsity, "--per-layer": per_layer, "--scope": scope,
             "--pattern": None if pattern == "unstructured" else pattern}
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} {value}: --speed-up chooses the sparsity of each layer; omit "
                             f"{name}")
    if precision not in (None, *PRECISIONS):
        raise InputError(f"--precision {precision}: {one_of(precision, PRECISIONS)}")


def _measured_sparsities(model: str, read: Callable[[], onnx.ModelProto], speed_up: float,
                         keep: Sequence[str], device: str | None, batch: int | None,
                         precision: str) -> dict[str, float]:
    """Measure the network, and choose sparsities for a speed-up.

    read: function that creates the network's ONNX model.
    keep: layers that must not be pruned.
    Raises InputError if zeros make no layer faster.
    """
    with _naming_options(model, None, keep):
        # prune a copy to find the layers that cannot be pruned; the sparsity does not matter
        kept = [layer.name for layer in prune(read(), 0.5, keep=keep) if layer.kept]
    with Console(stderr=True).status("reading the network") as status, naming(model):
        advice = advise(read, device=device, batch=batch, precision=precision,
                        speed_up=speed_up, keep=kept, note=status.update)
    choice = advice.choice
    if choice is None or not choice.sparsities:
        raise InputError(f"--speed-up {speed_up:g}: no layer of {model} is faster with zeros on "
                         f"{advice.device}; see the times with `gossamer advise`")
    if not choice.reached:
        terminal.notice(f"--speed-up {speed_up:g}: unstructured pruning makes the network at most "
                        f"about {choice.speed_up:.2f} times as fast; the network is pruned for "
                        "this speed-up", "warning")
    return choice.sparsities


def read_sparsities(path: Path) -> dict[str, float]:
    """Read the sparsities of layers from a .csv or .json file.

    Raises InputError with the file and the line.
    """
    if path.suffix not in (".csv", ".json"):
        raise InputError(f"--per-layer {path}: expected a name that ends in .csv or .json")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text, expected layers and sparsities") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    pairs = _csv_pairs(path, text) if path.suffix == ".csv" else _json_pairs(path, text)
    sparsities: dict[str, float] = {}
    for where, name, value in pairs:
        try:
            sparsity = float(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise InputError(f"{where}: the sparsity of layer {name!r} is {value!r}, expected a "
                             "number") from None
        if (reason := check_sparsity(sparsity)) is not None:
            raise InputError(f"{where}: the sparsity of layer {name!r} is {sparsity:g}: {reason}")
        if name in sparsities:
            raise InputError(f"{where}: layer {name!r} occurs twice")
        sparsities[name] = sparsity
    if not sparsities:
        raise InputError(f"{path}: contains no layer; expected lines like `conv1, 0.9`")
    return sparsities


def _csv_pairs(path: Path, text: str) -> Iterable[tuple[str, str, object]]:
    """Yield, for each line, its position (for messages), the layer and the sparsity."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            is_heading = reader.line_num == 1 and cells[1:] == ["sparsity"]
            if not any(cells) or cells[0].startswith("#") or is_heading:
                continue
            where = f"{path}: line {reader.line_num}"
            if len(cells) != 2:
                raise InputError(f"{where}: has {len(cells)} cells, expected `layer, sparsity`")
            yield where, cells[0], cells[1]
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}") from None


def _json_pairs(path: Path, text: str) -> Iterable[tuple[str, str, object]]:
    """Yield, for each entry, the file name (for messages), the layer and the sparsity."""
    try:
        # parse integers as floats: an integer with too many digits becomes infinite here, instead
        # of failing later
        content = json.loads(text, object_pairs_hook=tuple, parse_int=float)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}: is not JSON: {error.msg}") from None
    except RecursionError:
        content = None
    if not isinstance(content, tuple):
        raise InputError(f'{path}: expected an object like {{"conv1": 0.9}}')
    for name, value in content:
        yield str(path), name, value


def _report(model: str, output: Path, layers: list[PrunedLayer], as_json: bool) -> None:
    pruned = [layer for layer in layers if not layer.kept]
    weights = sum(layer.size for layer in pruned)
    before = sum(layer.before for layer in pruned)
    after = sum(layer.after for layer in pruned)
    if as_json:
        terminal.print_json({"model": model, "output": str(output), "weights": weights,
                             "nonzeros_before": before, "nonzeros_after": after,
                             "layers": [asdict(layer) for layer in layers]})
        return
    rows = [{"layer": layer.name, "op": layer.op, "size": layer.size or None,
             "shape": shape_text(layer.shape) if layer.size else None,
             "before": _density(layer, layer.before), "after": _density(layer, layer.after),
             "kept": f"unchanged: {layer.kept}" if layer.kept else None} for layer in layers]
    terminal.print_table({"layer": "layer", "op": "op", "shape": "shape", "size": "weights",
                          "before": "density before", "after": "after", "kept": "note"}, rows)
    print(f"{counted(len(pruned), 'layer')}: density {before / weights:.2%} before, "
          f"{after / weights:.2%} after; {weights - after} of {weights} weights "
          f"are zero, compared with {weights - before} before")
    terminal.print_line(f"written: {output}, the graph of {model} as ONNX, with only the weights "
                        "changed")
    if after < before:
        print("pruning costs accuracy unless the network is trained further; "
              + evaluate_hint(output))


def _density(layer: PrunedLayer, nonzeros: int) -> str | None:
    return share_text(nonzeros / layer.size) if layer.size else None
