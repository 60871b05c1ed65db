"""The verb `serve`: serve networks over HTTP."""

from __future__ import annotations

import logging
import math
import re
import signal
from functools import partial
from pathlib import Path
from socket import socket
from typing import Annotated

import typer

import gossamer
from gossamer.cli import arguments, photo_options
from gossamer.cli.arguments import load_graph, load_plan
from gossamer.cli.photo_options import PhotoOptions
from gossamer.device.registry import find, find_several, names_several
from gossamer.errors import InputError, installing, one_of, quoted
from gossamer.io.images import Preprocessing
from gossamer.io.limits import bytes_of
from gossamer.io.text import duration_text
from gossamer.model.graph import Graph
from gossamer.model.photos import taking_photos
from gossamer.ops.host_threads import ALL, Threads
from gossamer.serve import log
from gossamer.serve.listener import bound, is_loopback, url_of
from gossamer.serve.models import BatchOptions, Loaded, Models, ServedModel
from gossamer.version import PACKAGE_VERSION

logger = logging.getLogger("gossamer.serve")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_HOST = re.compile(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:]+")
_STATISTICS = "stats"
"""The reserved name that replaces the model name in the URL of the statistics of all models."""
_SUFFIXES = re.compile(r"(\.onnx|\.onnx\.gz|\.cfg|\.plan)$")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
"""Seconds of each unit of time."""


def serve(
    models: Annotated[list[str], typer.Argument(
        metavar="[NAME=]MODEL...",
        help="The networks: saved plans, files or names of the zoo. NAME is the model name in "
             "requests (default: the name of the file).")],
    device: arguments.DevicesOption = None,
    host: Annotated[str, typer.Option(
        help="Address to listen on. There is no authentication: do not change the default unless "
             "the server is behind an authenticating proxy.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(
        min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 8000,
    latency: Annotated[str | None, typer.Option(
        metavar="TIME", help="Target latency, such as 5ms: limits the batch sizes (default: the "
                             "highest throughput).")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Maximum batch size.")] = 64,
    queue: Annotated[int, typer.Option(
        min=1,
        help="Maximum number of images in the queue; further requests get status 429.")] = 1024,
    max_body: Annotated[str, typer.Option(
        metavar="BYTES", help="Maximum size of a request, such as 64M; larger ones get status "
                              "413.")] = "64M",
    max_json: Annotated[str, typer.Option(
        metavar="BYTES", help="Maximum size of a JSON response; larger ones get status 400 unless "
                              "binary outputs are requested.")] = "64M",
    max_pixels: Annotated[str, typer.Option(
        metavar="PIXELS", help="Maximum number of pixels of an image, such as 16M; its sides are "
                               "at most 16384.")] = "16M",
    allow_host: Annotated[list[str] | None, typer.Option(
        metavar="NAME", help="Allowed Host header, such as the name of a proxy; * allows all. "
                             "By default a server on 127.0.0.1 allows names without a dot, and "
                             "all IP addresses. May be repeated.")] = None,
    access_log: Annotated[bool, typer.Option(
        "--access-log", help="Log every request.")] = False,
    log_format: Annotated[str, typer.Option(
        metavar="text|json", help="Format of the log on standard error.")] = "text",
    grace: Annotated[float, typer.Option(
        min=0, help="Seconds after SIGTERM during which the readiness probe fails but requests "
                    "are still accepted.")] = 1.0,
    preprocess: arguments.PreprocessOption = None,
    threads: arguments.ThreadsOption = None,
    strict: arguments.StrictOption = False,
) -> None:
    """Serve networks over HTTP, for tensors (Open Inference Protocol) or images."""
    if hasattr(signal, "SIGHUP"):
        # SIGHUP must not end the process before the server is started and handles the signal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    options = BatchOptions(None if latency is None else seconds_of(latency, "--latency"), batch,
                           queue)
    most_bytes = bytes_of(max_body, "--max-body")
    most_json = bytes_of(max_json, "--max-json")
    most_pixels = bytes_of(max_pixels, "--max-pixels", "pixels")
    if log_format not in log.FORMATS:
        raise InputError(f"--log-format {quoted(log_format)}: {one_of(log_format, log.FORMATS)}")
    if not grace < math.inf:
        raise InputError(f"--grace {grace}: expected a finite number of seconds")
    if preprocess is not None:
        photo_options.check_preset(preprocess)
    number = arguments.threads_of(threads)
    named = _named(models)
    _check_device(device)
    listener = bound(host, port)
    try:
        from gossamer.serve.app import Server
        from gossamer.serve.run import serve as serve_until_ended
    except ImportError as error:
        raise InputError(f"serve needs the package {error.name}: "
                         f"{installing('serve')}") from None
    hosts = _hosts(host, listener, allow_host)
    with log.written(log_format, requests=access_log):
        logger.info("gossamer %s serves %s", PACKAGE_VERSION, ", ".join(named))
        served = [ServedModel(name, _files(model),
                              partial(_loaded, model, device, preprocess, strict=strict,
                                      threads=number), options)
                  for name, model in named.items()]
        if not is_loopback(listener):
            logger.warning("no authentication: everybody who reaches %s may send requests; put "
                           "the server behind an authenticating proxy",
                           listener.getsockname()[0])
        for each in served:
            times = ", ".join(f"{size} in {duration_text(1e6 * seconds)}"
                              for size, seconds in each.batcher.times.items())
            arguments.tell_of_threads(number, arguments.device_of(each.plan)[0])
            print(f"{each.name}: batches of {times or 'one request'}")
        server = Server(Models(served), most_bytes=most_bytes, most_json=most_json,
                        most_pixels=most_pixels, hosts=hosts)
        serve_until_ended(server, listener, grace=grace, logs_requests=access_log,
                          ready=partial(print, f"listening at {url_of(listener)}", flush=True))
        print("ended")


def _hosts(host: str, listener: socket, allowed: list[str] | None) -> set[str] | None:
    """Return the dotted names allowed in the header Host; None allows any.

    A server on 127.0.0.1 accepts connections only from this machine. The check of the header
    protects it from DNS rebinding: an attacker lets the name of a website resolve to 127.0.0.1, so
    that the website's pages in a local browser can send requests to the server. The header Host of
    these requests contains the website's name.

    Raises InputError if a value of --allow-host is not a name.
    """
    for name in allowed or []:
        if name != "*" and not _HOST.fullmatch(name):
            raise InputError(f"--allow-host {quoted(name)}: expected a name without a port, such "
                             "as models.example, or *")
    names = {name.lower() for name in (host, *(allowed or []))}
    return None if "*" in names or not (allowed or is_loopback(listener)) else names


def _check_device(device: str | None) -> None:
    """Raise DeviceError if a device is missing, before any network is read."""
    if names_several(device):
        find_several(device)
    else:
        find(device)


def seconds_of(text: str, option: str) -> float:
    """Parse a time such as 5ms, 200us or 0.005, and return seconds.

    Raises InputError for other texts.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(us|ms|s)?", text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if not 0 < seconds < 1e6:
        raise InputError(f"{option} {quoted(text)}: expected a time above 0, such as 5ms or 0.005")
    return seconds


def _named(models: list[str]) -> dict[str, str]:
    """Return the networks by the names under which they are served.

    Raises InputError if a name is invalid in a URL, or is used twice.
    """
    named: dict[str, str] = {}
    for text in models:
        name, equals, model = text.partition("=")
        if not equals:
            name, model = _SUFFIXES.sub("", Path(text).name), text
        if not _NAME.fullmatch(name) or name == _STATISTICS:
            raise InputError(f"{text}: the name {quoted(name)} is not valid in a URL; use "
                             "NAME=MODEL with letters, digits, '.', '_' and '-'")
        if name in named:
            raise InputError(f"{text}: the name {quoted(name)} is used twice; use NAME=MODEL")
        named[name] = model
    return named


def _files(model: str) -> list[Path]:
    """Return the files of a network; the server reloads the network when a file changes."""
    path = Path(model)
    files = [path, path.with_suffix(".weights")] if path.suffix == ".cfg" else [path]
    return [file for file in files if file.exists()]


def _loaded(model: str, device: str | None, preprocess: str | None, *,
            strict: bool, threads: Threads | None) -> Loaded:
    """Return the plan of a network and the preprocessing of pictures."""
    plan = load_plan(model, device, None, None, strict, threads=threads)
    if plan is not None:
        return Loaded(plan, _preparation(model, plan.graph, preprocess))
    graph = load_graph(model, None)
    prepare = _preparation(model, graph, preprocess)
    if prepare is not None:
        graph = taking_photos(graph, prepare)
    return Loaded(gossamer.compile(graph, device, strict=strict, threads=threads or ALL), prepare)


def _preparation(model: str, graph: Graph, preprocess: str | None) -> Preprocessing | None:
    """Return the preprocessing of the option or of the network, or None."""
    metadata = graph.metadata
    if preprocess is None and metadata.preprocessing is None and metadata.picture is None:
        return None
    return photo_options.preprocessing(model, graph, PhotoOptions(preprocess))

