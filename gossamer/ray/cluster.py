"""Connects to a Ray cluster, chooses the number of workers, and distributes work over them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.errors import InputError, installing, quoted

_CONNECT_S = 5.0
"""Seconds in which a cluster's address must answer."""


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
        If Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError:
        raise InputError(f"ray is not installed: {installing('ray')}") from None
    if ray.is_initialized():
        return ray
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon:
        # Ray itself waits a minute for a cluster that does not answer
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
    """The number of workers, and the resources that each of them uses.

    count: number of workers.
    processors: processors that each worker uses, as Ray counts them; may be a fraction.
    gpus: GPUs that each worker uses, as Ray counts them.
    """

    count: int
    processors: float
    gpus: float

    @staticmethod
    def of(resources: Mapping[str, float], device: str, count: int | None) -> Workers:
        """Return the workers of a cluster: one for each GPU, or for each processor except one.

        Parameters
        ----------
        resources : mapping of str to float
            The resources of the cluster by their names, "CPU" and "GPU" among them.
        device : str
            The name of the device of each worker.
        count : int, optional
            The most workers; by default as many as the cluster has room for.

        Returns
        -------
        Workers
            The workers. They leave one processor to Ray, which hangs if it has none to read data.

        Raises
        ------
        InputError
            If `device` is a GPU and the cluster has none, or if `count` is less than 1.
        """
        if count is not None and count < 1:
            raise InputError(f"workers is {count}, expected 1 or more")
        processors, gpus = (int(resources.get(name, 0)) for name in ("CPU", "GPU"))
        on_gpu = device.startswith("cuda")
        if on_gpu and not gpus:
            raise InputError(f"device {device}: no worker of the cluster has a GPU; add one, or "
                             "give device='host'")
        room = gpus if on_gpu else max(1, processors - 1)
        most = min(count or room, room)
        share = min(1.0, max(processors - 1, 0.5) / most)
        return Workers(most, share, 1.0 if on_gpu else 0.0)


def shared_out(work: Callable[..., Any], pieces: Sequence[Any], shared: Any,
               address: str | None) -> list[Any]:
    """Return a function's results for pieces of work, which the workers of a cluster compute.

    Parameters
    ----------
    work : callable
        Function of a piece and of `shared`.
    pieces : sequence
        The pieces of work.
    shared : object
        The data that all pieces need; it is sent to the cluster once.
    address : str, optional
        The cluster's address, as for `connect`.

    Returns
    -------
    list
        The results in the order of the pieces. A piece whose worker is lost is computed again.

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
