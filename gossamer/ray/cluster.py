"""Connection to a Ray cluster, and distribution of work to its workers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.errors import InputError, installing, quoted

_CONNECT_S = 5.0
"""Timeout in seconds for the connection to a cluster."""


def connect(address: str | None = None) -> Any:
    """Connect to a Ray cluster, unless this process is connected already.

    Parameters
    ----------
    address : str, optional
        "HOST:PORT" of a cluster, "auto" for the cluster that this machine belongs to, or "local"
        for a new cluster on this machine; by default the address that Ray itself chooses.

    Returns
    -------
    module
        The package ray.

    Raises
    ------
    InputError
        Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError:
        raise InputError(f"ray is not installed: {installing('ray')}") from None
    if ray.is_initialized():
        return ray
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon:
        # check the address first: Ray waits a minute for a cluster that does not answer
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except (OSError, ValueError) as error:
            raise InputError(f"no Ray cluster at {quoted(address)}: {error}") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"no Ray cluster at {quoted(address)}: {error}") from None
    return ray


@dataclass(frozen=True)
class Workers:
    """The number of workers, and the resources per worker.

    count: number of workers.
    processors: Ray CPUs per worker; may be a fraction.
    gpus: Ray GPUs per worker.
    """

    count: int
    processors: float
    gpus: float

    @staticmethod
    def of(resources: Mapping[str, float], device: str, count: int | None) -> Workers:
        """Choose the workers of a cluster.

        On CUDA devices there is one worker per GPU; on other devices, one worker per processor,
        except for the processor that is left to Ray.

        Parameters
        ----------
        resources : mapping of str to float
            The resources of the cluster by name, including "CPU" and "GPU".
        device : str
            The name of the device of each worker.
        count : int, optional
            Maximum number of workers; by default as many as the cluster supports.

        Returns
        -------
        Workers
            The workers. One processor is left to Ray, which hangs if it has no processor to read
            data.

        Raises
        ------
        InputError
            `device` is a GPU and the cluster has none, or `count` is less than 1.
        """
        if count is not None and count < 1:
            raise InputError(f"workers is {count}, expected 1 or more")
        processors, gpus = (int(resources.get(name, 0)) for name in ("CPU", "GPU"))
        on_gpu = device.startswith("cuda")
        if on_gpu and not gpus:
            raise InputError(f"device {device}: the cluster has no GPU; add one, or pass "
                             "device='host'")
        room = gpus if on_gpu else max(1, processors - 1)
        most = min(count or room, room)
        share = min(1.0, max(processors - 1, 0.5) / most)
        return Workers(most, share, 1.0 if on_gpu else 0.0)


def shared_out(work: Callable[..., Any], pieces: Sequence[Any], shared: Any,
               address: str | None) -> list[Any]:
    """Compute a function for several pieces of work on a cluster.

    Parameters
    ----------
    work : callable
        Function of a piece and of `shared`.
    pieces : sequence
        The pieces of work.
    shared : object
        Data for all pieces, sent to the cluster once.
    address : str, optional
        The cluster's address, as for `connect`.

    Returns
    -------
    list
        The results in the order of the pieces. Pieces of a lost worker are computed again.

    Raises
    ------
    Exception
        Any exception that the function raises.
    """
    ray = connect(address)
    task = ray.remote(num_cpus=1, max_retries=-1)(work)
    kept = ray.put(shared)
    try:
        return ray.get([task.remote(piece, kept) for piece in pieces])
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
