"""SweepWorkers: the processes and machines that train the networks of a sweep."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from functools import partial
from types import TracebackType
from typing import Any

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.device.registry import find
from gossamer.errors import GossamerError, GossamerWarning
from gossamer.io.limits import available_memory
from gossamer.io.process_pool import NoProcessError, ProcessEndedError, ProcessPool
from gossamer.io.shared_object import SharedObject
from gossamer.train.network_training import NetworkTraining, train, train_elsewhere, train_jobs
from gossamer.train.sweep_data import SweepData

_SHARE = 8
"""Maximum number of networks that a process trains together, so that they share the fixed costs of
an epoch."""
_WORTH_S = 1.0
"""Expected training time in seconds above which additional processes are started."""

_Job = list[NetworkTraining]


class SweepWorkers:
    """Trains the networks of a sweep, those with equal problems together.

    With a Ray cluster, its workers train all networks. Without one, several processes train the
    networks on the host: other processes start with the longest trainings, and this process starts
    with the shortest. On other devices, this process trains the networks; meanwhile, threads of
    this process compile kernels and score trained networks.

    data: the samples of all networks.
    processes: number of processes on the host, as for sweep().
    ray: address of a Ray cluster; None without one.
    """

    def __init__(self, data: SweepData, processes: int | None, ray: str | None) -> None:
        self._splits = data.splits
        self._nbytes = data.nbytes
        self._processes = processes
        self._ray = ray
        self._stack = ExitStack()
        self._pool: ProcessPool | None = None
        self._path: tuple[str, int] = "", 0
        self._threads = 1

    def __enter__(self) -> SweepWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.close()

    def train(self, trainings: Sequence[NetworkTraining]) -> None:
        """Train networks until each ends or pauses."""
        trainings = [training for training in trainings if not training.has_ended
                     or training.training_score is None]
        if self._ray is not None:
            from gossamer.ray import shared_out

            jobs = self._jobs(trainings, _SHARE)
            for job, done in zip(jobs, shared_out(train, jobs, self._splits, self._ray or None),
                                 strict=True):
                _merge(job, done)
            return
        portable = [training for training in trainings if training.device is find("host")]
        seconds = sum(training.expected_seconds(self._splits) for training in portable)
        count = min(len(portable), self._room(),
                    self._processes or (processors() if seconds > _WORTH_S else 1))
        self._start(count)
        jobs = self._jobs(trainings, _SHARE if self._pool is None
                          else max(1, min(_SHARE, len(portable) // (4 * count))))
        elsewhere = [job for job in jobs if self._pool and job[0].device is find("host")]
        elsewhere.sort(key=lambda job: -sum(each.expected_seconds(self._splits) for each in job))
        futures = [(job, self._submit(job)) for job in elsewhere]
        for job in jobs:
            if job not in elsewhere and job[0].device is find("host"):
                train(job, self._splits)
        train_jobs([job for job in jobs if job[0].device is not find("host")], self._splits)
        with blas.limited(self._threads) if self._pool else ExitStack():
            for job, future in reversed(futures):
                if future.cancel():
                    train(job, self._splits)
            for job, future in futures:
                if not future.cancelled():
                    self._finish(job, future)

    def _room(self) -> int:
        """Return how many processes have room in memory; each of them copies the samples."""
        free = available_memory()
        return sys.maxsize if free is None else max(1, free // max(1, self._nbytes) - 1)

    def _start(self, count: int) -> None:
        """Start additional processes, unless they are running or there is no work for them."""
        if self._pool is not None or count < 2:
            return
        self._threads = max(1, processors() // count)
        try:
            self._path = self._stack.enter_context(closing(SharedObject(self._splits))).path
        except GossamerError:
            return  # this process trains alone
        self._pool = self._stack.enter_context(ProcessPool(
            count - 1, "process that trains networks", variables=blas.variables(self._threads)))

    def _jobs(self, trainings: Sequence[NetworkTraining], share: int) -> list[_Job]:
        """Return groups of networks that are trained together.

        share: maximum number of networks in a group on the host.
        """
        groups: dict[Any, _Job] = {}
        for training in trainings:
            key = (training.problem(self._splits), id(self._splits[training.split].data),
                   training.device, training.effort, training.algorithm, training.precision)
            groups.setdefault(key, []).append(training)
        jobs = []
        for group in groups.values():
            most, device = share, group[0].device
            if self._ray is None and isinstance(device, Device) and device is not find("host"):
                # half of the device's memory is reserved for the samples
                nbytes = 12 * group[0].settings.problem(0, 0).parameter_count
                most = max(1, device.limits.memory_bytes // 2 // nbytes)
            jobs += [group[first:first + most] for first in range(0, len(group), most)]
        return jobs

    def _submit(self, job: _Job) -> Future[Any]:
        assert self._pool is not None
        future = self._pool.submit(train_elsewhere, self._path, job, what="trained networks")
        future.add_done_callback(partial(_take, job))
        return future

    def _finish(self, job: _Job, future: Future[Any]) -> None:
        """Wait for the results of a job.

        If the job's process ended before the job was done, another process repeats the job. If no
        other process is left, this process repeats it.
        """
        while True:
            try:
                done, texts = future.result()
                _merge(job, done)  # _take() may not have been called yet
                for text in texts:
                    warnings.warn(text, GossamerWarning, stacklevel=5)
                return
            except ProcessEndedError:
                future = self._submit(job)
            except NoProcessError:
                train(job, self._splits)
                return


def _take(job: _Job, future: Future[Any]) -> None:
    """Store the results of another process when they are available."""
    if not future.cancelled() and future.exception() is None:
        _merge(job, future.result()[0])


def _merge(job: _Job, done: Sequence[NetworkTraining]) -> None:
    for training, result in zip(job, done, strict=True):
        vars(training).update(vars(result))
