"""A stream of batches through a plan: reading, copying in, computing and copying out overlap."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import GossamerError, InputError, OutOfMemoryError
from gossamer.model.graph import Graph, as_called
from gossamer.plan.run.binding import as_called_for, batch_of, in_order
from gossamer.plan.run.context import Context
from gossamer.plan.run.foreign import as_taken, is_foreign, like_on_host, on_host

ERRORS = ("raise", "return")
"""The two things that a stream may do with the error of one batch."""
_JOIN_S = 1.0
"""Seconds for which close() waits for a read of the caller's iterator to end."""

Finish = Callable[[], Any]
"""Function that returns the result of a batch, in the thread of the caller."""
Collect = Callable[[], Finish]
"""Function that waits until the device has computed a batch."""
Begin = Callable[["_Lanes"], Collect]
"""Function that queues the work on a batch which has been checked."""


class ResultStream(Iterator[Any]):
    """The results of batches, in their order, as `Plan.stream` returns them.

    Threads read and compute ahead of the caller, at most twice as many batches as the stream is
    deep. They end when all results were taken, when the stream is closed, and when the caller drops
    it. It may be used as a context manager, which closes it at the end.
    """

    def __init__(self, plan: PlanParts, batches: Iterable[Any], depth: int, errors: str) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise InputError(f"depth {depth!r}: expected a whole number of 1 or more")
        if errors not in ERRORS:
            raise InputError(f"errors {errors!r}: expected one of {', '.join(ERRORS)}")
        if isinstance(batches, (Mapping, str)) or hasattr(batches, "shape"):
            raise InputError(f"batches is a {type(batches).__name__}, which is one batch; give an "
                             "iterable of batches, such as a list")
        try:
            iterator = iter(batches)
        except TypeError:
            raise InputError(f"batches is a {type(batches).__name__}, expected an iterable of "
                             "batches") from None
        self._returns_errors = errors == "return"
        self._pipeline = _Pipeline(plan, iterator, depth)
        self._is_over = False
        weakref.finalize(self, self._pipeline.end)

    def __iter__(self) -> ResultStream:
        return self

    def __next__(self) -> Any:
        """Return the result of the next batch.

        Raises
        ------
        GossamerError
            If this batch failed; the message begins with its number from 0. The stream goes on with
            the next one.
        Exception
            What the iterator of the batches raised, after the results of all before it.
        """
        if self._is_over:
            raise StopIteration
        try:
            entry = self._pipeline.next_entry()
            if isinstance(entry, Future):
                return self._result(entry)
        except (KeyboardInterrupt, SystemExit):
            self.close()
            raise
        self.close()
        raise StopIteration if entry is None else entry

    def _result(self, entry: Future[Finish]) -> Any:
        try:
            return entry.result()()
        except Exception as error:
            if self._returns_errors:
                return error
            raise
        finally:
            self._pipeline.make_room()

    def close(self) -> None:
        """End the threads, and free the memory of the stream on the device.

        Batches that are being computed are waited for. Where the iterator of the batches is being
        read, that read goes on until it returns by itself.
        """
        self._is_over = True
        self._pipeline.end()
        self._pipeline.join()

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PlanParts:
    """The parts of a plan that a stream uses.

    network: the plan's graph. graph: the same with inputs and outputs in the forms of callers'
    arrays. context_of: makes a context of a batch size on a stream of the device. call: computes
    the outputs where an input is empty.
    """

    def __init__(self, network: Graph, device: Device, context_of: Callable[[int, Any], Context],
                 call: Callable[..., Any]) -> None:
        self.network = network
        self.graph = as_called(network)
        self.device = device
        self.context_of = context_of
        self.call = call


class _Pipeline:
    """The threads of a stream. They hold no reference to the stream itself, which ends them when
    the caller drops it.

    One thread reads, as iterators are rarely made for several. Another one queues each batch on one
    of several lanes, so that one batch is copied while others are computed, and collects what is
    done: switching between more threads would take longer than the calls of the driver.
    """

    def __init__(self, plan: PlanParts, iterator: Iterator[Any], depth: int) -> None:
        self._plan = plan
        self._iterator = iterator
        # processors that compute several batches at once take longer for each
        self._at_once = 1 if plan.device.on_processors else depth
        self._lanes = _Lanes(plan, self._at_once)
        self._room = threading.Semaphore(2 * depth)
        self._tasks: SimpleQueue[tuple[int, Begin, Future[Finish]] | None] = SimpleQueue()
        self._entries: SimpleQueue[Future[Finish] | BaseException | None] = SimpleQueue()
        self._is_ending = False
        _PIPELINES.add(self)
        self._reader = threading.Thread(target=self._read, name="gossamer reads", daemon=True)
        self._worker = threading.Thread(target=self._work, name="gossamer computes", daemon=True)

    def next_entry(self) -> Future[Finish] | BaseException | None:
        """Returns the next batch in order; what the iterator raised; or None at the end."""
        if not self._reader.ident:
            self._reader.start()
            self._worker.start()
        return self._entries.get()

    def make_room(self) -> None:
        """Lets a further batch be read, as the result of one was taken."""
        self._room.release()

    def end(self) -> None:
        """Makes the threads end soon."""
        self._is_ending = True
        self._room.release()
        self._tasks.put(None)
        self._entries.put(None)

    def join(self) -> None:
        """Waits for the thread that computes and, for a short time, for the one that reads."""
        if self._worker.ident and self._worker is not threading.current_thread():
            self._worker.join()
        if self._reader.ident and self._reader is not threading.current_thread():
            self._reader.join(_JOIN_S)
        self._lanes.clear()

    def _read(self) -> None:
        """Reads the batches, checks each, and hands it to the threads that compute."""
        last: BaseException | None = None
        try:
            # arrays on the device are ready when what is pending on this stream is done
            stream = self._plan.device.create_stream()
            for index in count():
                self._room.acquire()
                if self._is_ending:
                    break
                try:
                    item = next(self._iterator)
                except StopIteration:
                    break
                entry: Future[Finish] = Future()
                self._entries.put(entry)
                try:
                    self._tasks.put((index, _checked(self._plan, item, stream), entry))
                except Exception as error:
                    entry.set_exception(_of_batch(index, error))
                del item
        except BaseException as error:
            last = error
        # a generator of the caller ends here, in the thread in which it has run
        self._iterator = iter(())
        self._entries.put(last)
        self._tasks.put(None)

    def _work(self) -> None:
        """Computes the batches, in the order in which they were read."""
        queued: deque[tuple[int, Collect, Future[Finish]]] = deque()
        while not self._is_ending:
            try:
                task = self._tasks.get_nowait() if queued else self._tasks.get()
            except Empty:
                _finish(*queued.popleft())
                continue
            if task is None:
                break
            index, begin, entry = task
            if len(queued) == self._at_once:
                _finish(*queued.popleft())
            try:
                queued.append((index, begin(self._lanes), entry))
            except Exception as error:
                entry.set_exception(_of_batch(index, error))
            # the arrays of a batch are not kept while the next one is waited for
            del task, begin, entry
        while queued:
            _finish(*queued.popleft())


def _finish(index: int, collect: Collect, entry: Future[Finish]) -> None:
    """Waits for a batch, and hands its result or its error on."""
    try:
        entry.set_result(collect())
    except Exception as error:
        entry.set_exception(_of_batch(index, error))


_PIPELINES: weakref.WeakSet[_Pipeline] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Ends the threads of all streams before the libraries of devices are unloaded."""
    for pipeline in list(_PIPELINES):
        pipeline.end()
        pipeline.join()


def _of_batch(index: int, error: Exception) -> Exception:
    """Returns the error of a batch, with the batch's number."""
    if not isinstance(error, GossamerError):
        error.add_note(f"in batch {index} of the stream")
        return error
    named = type(error)(f"batch {index}: {error}")
    named.__cause__ = error
    return named


class _Lane:
    """A context with a stream of its own."""

    def __init__(self, plan: PlanParts, batch: int) -> None:
        self.batch = batch
        self.stream = plan.device.create_stream()
        self.context = plan.context_of(batch, self.stream)


class _Lanes:
    """The lanes of a stream, of which each computes one batch at a time.

    at_once: how many lanes are used at once. As many again are kept for other batch sizes.
    computing: the stream on which lanes compute large batches one after another; None where the
    device copies nothing beside other work.
    """

    def __init__(self, plan: PlanParts, at_once: int) -> None:
        self._plan = plan
        self.computing = plan.device.create_stream() if plan.device.locks_pages else None
        self._most_idle = 2 * at_once
        self._idle: OrderedDict[_Lane, None] = OrderedDict()

    def take(self, batch: int) -> _Lane:
        """Returns a lane for a batch size, which is given back unless its batch failed."""
        lane = next((lane for lane in reversed(self._idle) if lane.batch == batch), None)
        if lane is None:
            return self._new(batch)
        del self._idle[lane]
        return lane

    def give_back(self, lane: _Lane) -> None:
        """Keeps a lane for another batch."""
        self._idle[lane] = None
        while len(self._idle) > self._most_idle:
            self._idle.popitem(last=False)

    def _new(self, batch: int) -> _Lane:
        try:
            return _Lane(self._plan, batch)
        except OutOfMemoryError:
            if not self._idle:
                raise
        self._idle.clear()
        return _Lane(self._plan, batch)

    def clear(self) -> None:
        """Frees the lanes that are not in use."""
        self._idle.clear()


def _checked(plan: PlanParts, item: Any, stream: Any) -> Begin:
    """Returns the function that begins a batch. Raises InputError where it does not fit the
    network. stream: the stream after whose present work arrays on the device are ready."""
    inputs = as_called_for(plan.network, in_order(
        plan.graph, tuple(item) if isinstance(item, (tuple, list)) else (item,), {}))
    if inputs and is_foreign(inputs[0]) and plan.device.holds(inputs[0]):
        return _on_device(plan, inputs, stream)
    return _on_host(plan, inputs)


def _on_host(plan: PlanParts, inputs: Sequence[Any]) -> Begin:
    arrays = [on_host(array) if is_foreign(array) else array for array in inputs]
    batch = batch_of(plan.graph, arrays)

    def begin(lanes: _Lanes) -> Collect:
        if any(array.size == 0 for array in arrays):
            return partial(_returning, plan.call(*inputs))
        lane = lanes.take(batch)
        collect = lane.context.begin({info.name: np.asarray(array, info.dtype, order="C")
                                      for info, array
                                      in zip(plan.graph.inputs, arrays, strict=True)},
                                     lanes.computing)

        def collected() -> Finish:
            named = collect()
            lanes.give_back(lane)
            results = [named[info.name] for info in plan.graph.outputs]
            if inputs and is_foreign(inputs[0]):
                results = [like_on_host(inputs[0], array) for array in results]
            return lambda: _single(results)

        return collected

    return begin


def _on_device(plan: PlanParts, inputs: Sequence[Any], stream: Any) -> Begin:
    device, graph = plan.device, plan.graph
    arrays = [device.incoming(as_taken(array, info.dtype), stream, name=f"input {info.name!r}",
                              dtype=info.dtype)
              for info, array in zip(graph.inputs, inputs, strict=True)]
    batch = batch_of(graph, arrays)

    def begin(lanes: _Lanes) -> Collect:
        if not batch:
            return partial(_returning, plan.call(*inputs))
        lane = lanes.take(batch)
        program = lane.context.program
        results = [device.empty_array(program.specs[program.outputs[info.name]],
                                      f"output {info.name!r}", lane.stream)
                   for info in graph.outputs]
        device.wait(lane.stream, stream)
        lane.context.run_on_device(
            {info.name: array.buffer for info, array in zip(graph.inputs, arrays, strict=True)},
            {info.name: array.buffer for info, array
             in zip(graph.outputs, results, strict=True)}, lane.stream)

        def collected() -> Finish:
            # the caller's streams know nothing of the lane's
            device.synchronize(lane.stream)
            lanes.give_back(lane)
            # the library of the arrays learns in the caller's thread on which stream it works there
            return lambda: _single([device.like(inputs[0], array) for array in results])

        return collected

    return begin


def _returning(outputs: Any) -> Finish:
    return lambda: outputs


def _single(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)
