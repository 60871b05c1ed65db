"""The contexts and lanes that drawn calls take, and the threads for which streams wait, are those
that were recorded."""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.errors import DeviceError, InputError, OutOfMemoryError
from gossamer.plan.run.contexts import Contexts
from gossamer.plan.run.lanes import Lanes
from gossamer.plan.run.stream import _of_batch, _Pipeline
from tests.recorded import Recorded, digest
from tests.recorded.outcomes import outcome


class _Stream:
    """A stream of a device; `key` is equal for streams of one handle."""

    def __init__(self, key: int, idle: bool = False, closed: bool = False) -> None:
        self.key, self.idle, self.closed = key, idle, closed


class _Device:
    """A device whose streams are _Stream objects."""

    locks_pages = True

    def __init__(self) -> None:
        self.streams = 0

    def create_stream(self) -> _Stream:
        self.streams += 1
        return _Stream(100 + self.streams)

    def stream_handle(self, stream: _Stream) -> int:
        assert not stream.closed, "a stream that is closed has no handle"
        return stream.key

    def is_closed(self, stream: _Stream) -> bool:
        return stream.closed

    def is_idle(self, stream: _Stream) -> bool:
        return stream.idle


class _Context:
    """A context that notes the batches it begins."""

    def __init__(self, name: str, stream: Any) -> None:
        self.name, self.stream = name, stream
        self.last_stream = stream or _Stream(0)
        self.begun: list[Any] = []

    def begin(self, named: Any, computing: Any) -> Any:
        self.begun.append((sorted(named), computing is not None))
        return lambda: {"y": np.array([len(self.begun)]), **named}


def _drawn_contexts(seed: int) -> str:
    """Returns which contexts drawn calls take, as long as none of the calls has to wait."""
    rng, device, made, done = random.Random(seed), _Device(), [0], []
    batches = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)[:(2, 8, 10)[seed % 3]]

    def make(batch: int, stream: Any) -> Any:
        if rng.random() < 0.15:
            raise rng.choice((OutOfMemoryError("full"), DeviceError("broken")))
        made[0] += 1
        return _Context(f"{batch}/{made[0]}{'' if stream is None else ' own'}", stream)

    contexts: Any = Contexts(device, make)  # type: ignore[arg-type]
    contexts.most = (4, 1, 2, 3)[seed // 3 % 4]
    with ExitStack() as stack:
        taken: dict[int, int] = {}
        for number in range(40):
            batch = rng.choice(batches)
            action = rng.choice(("take", "stream", "stream", "first", "set", "know", "clear"))
            known = contexts.of(batch)
            could_wait = bool(taken.get(batch))
            if action == "take" and not could_wait:
                text = outcome(lambda batch=batch: stack.enter_context(contexts.taken(batch)).name,
                               text=str)
                taken[batch] = 1
            elif action == "stream" and not could_wait:
                stream = _Stream(rng.choice((0, 7, 8, 9)))

                def on_stream(batch: int = batch, stream: _Stream = stream) -> str:
                    context = contexts.on_stream(batch, stream)
                    context.last_stream = stream
                    return context.name

                text = outcome(on_stream, text=str)
            elif action == "first" and not could_wait:
                text = outcome(lambda batch=batch: contexts.first(batch).name, text=str)
            elif action == "set" and known:
                chosen = rng.choice(known).last_stream
                setattr(chosen, rng.choice(("idle", "closed")), rng.random() < 0.7)
                text = f"{chosen.idle} {chosen.closed}"
            elif action == "know":
                for form in range(rng.choice((1, 31))):
                    contexts.remember((number, form), SimpleNamespace())
                text = str(len(contexts.known))
            elif action == "clear" and rng.random() < 0.2:
                contexts.clear()
                taken.clear()
                text = "cleared"
            else:
                continue
            done.append(f"{action} {batch} {text} [{' '.join(each.name for each in known)}] "
                        f"{len(contexts.known)}")
    left = " ".join(context.name for context in contexts.all())
    return f"{digest(done)} {len(done)} {left}; {done[1][:60]}; {done[-1][:60]}"


def test_contexts(recorded: Recorded) -> None:
    recorded("contexts", {str(seed): _drawn_contexts(seed) for seed in range(72)})


def test_contexts_of_calls_at_once(recorded: Recorded) -> None:
    """Calls that do not wait take contexts of their own, as many as are allowed or fit."""
    texts = {}
    for most, fits, calls in product((1, 2, 4), (1, 2, 3, 9), (1, 2, 3, 4)):
        device, made = _Device(), []

        def make(batch: int, stream: Any, fits: int = fits, made: list = made) -> Any:
            if len(made) >= fits:
                raise OutOfMemoryError("full")
            made.append(_Context(f"{len(made)}", stream))
            return made[-1]

        contexts: Any = Contexts(device, make)  # type: ignore[arg-type]
        contexts.most = most
        with ExitStack() as stack:
            names = [stack.enter_context(contexts.taken(5)).name
                     for _ in range(min(most, fits, calls))]
            group = contexts._groups[5]
            contexts._grow(5, group)
            contexts._grow(5, group, for_stream=True)
            first = contexts.first(5).name
        streams = []
        for key in (7, 8, 7, 9, 8, 6, 5):
            context = contexts.on_stream(5, _Stream(key))
            context.last_stream = _Stream(key)
            streams.append(context.name)
        texts[f"most {most}, {fits} fit, {calls} calls"] = (
            f"{names} {first} {streams} {len(contexts.of(5))} {contexts.of(6)} {group.most}")
    recorded("contexts_at_once", texts)


def test_the_least_recently_used_batch_size_is_dropped(recorded: Recorded) -> None:
    texts = {}
    for seed in range(12):
        contexts: Any = Contexts(_Device(), lambda batch, stream: _Context(  # type: ignore[arg-type]
            str(batch), stream))
        rng = random.Random(seed)
        lines = []
        for batch in (rng.randrange(7 + seed % 5) for _ in range(30)):
            contexts.first(batch)
            contexts.remember(batch, SimpleNamespace())
            lines.append(f"{''.join(each.name for each in contexts.all())}-{len(contexts.known)}")
        texts[str(seed)] = " ".join(lines[-4:]) + f" {digest(lines)}"
    recorded("batch_sizes_of_contexts", texts)


def _drawn_lanes(seed: int) -> str:
    """Returns which lanes drawn calls take, give back and prepare."""
    rng, device, made, done = random.Random(seed), _Device(), [], []
    device.locks_pages = seed % 2 == 0

    def context_of(batch: int, stream: Any) -> Any:
        if rng.random() < 0.2:
            raise OutOfMemoryError("full")
        made.append(_Context(f"{batch}/{len(made)}", stream))
        return made[-1]

    x, y = SimpleNamespace(name="x", dtype="float32"), SimpleNamespace(name="y")
    graph = SimpleNamespace(inputs=[x], outputs=[y, x])
    plan: Any = SimpleNamespace(
        device=device, context_of=context_of, graph=graph,
        page_locked=lambda batch: (np.full((batch, 2), 7, np.float32),))
    lanes = Lanes(plan, seed % 4)
    held: list[Any] = []
    done.append(str(lanes.computing is None))
    for _ in range(25):
        action = rng.choice(("take", "take", "give", "give", "begin", "prepare", "clear"))
        batch = rng.choice((1, 2, 3))

        def act(action: str = action, batch: int = batch) -> str:
            if action == "take":
                held.append(lanes.take(batch))
                assert not held[-1].arrays[0].any()
                return held[-1].context.name
            if action == "give" and held:
                lanes.give_back(held.pop(rng.randrange(len(held))))
            elif action == "begin" and held:
                outputs = lanes.begun(held.pop(), (np.zeros((batch, 2)),))()
                return f"{[output.tolist() for output in outputs]}"
            elif action == "prepare":
                lanes.prepare(batch, rng.randrange(3))
            elif action == "clear" and rng.random() < 0.2:
                lanes.clear()
            return ""

        done.append(f"{action} {batch} {outcome(act, text=str)} "
                    f"[{' '.join(lane.context.name for lane in lanes._idle)}]")
    begun = " ".join(str(len(context.begun)) for context in made)
    return f"{digest([done, [context.begun for context in made]])} begun {begun}; {done[-1]}"


def test_lanes(recorded: Recorded) -> None:
    recorded("lanes", {str(seed): _drawn_lanes(seed) for seed in range(40)})


class _Thread:
    """A thread that notes the time for which it is waited for."""

    def __init__(self, ident: int | None) -> None:
        self.ident = ident
        self.waits: list[float | None] = []

    def join(self, timeout: float | None = None) -> None:
        self.waits.append(timeout)


def test_threads_that_a_stream_waits_for(recorded: Recorded,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread waits for the threads that have begun, except for itself."""
    texts = {}
    for reads, computes, others, current in product((None, 1), (None, 2), (None, 3), (0, 1, 2, 3)):
        threads = {number: _Thread(ident)
                   for number, ident in ((1, reads), (2, computes), (3, others))}
        pipeline: Any = SimpleNamespace(_reader=threads[1], _workers=[threads[2], threads[3]])
        with monkeypatch.context() as patch:
            patch.setattr(threading, "current_thread",
                          lambda threads=threads, current=current: threads.get(current))
            _Pipeline.join(pipeline)
        texts[f"begun {reads} {computes} {others}, in {current}"] = str(
            [thread.waits for thread in threads.values()])
    recorded("waits_of_streams", texts)


def test_errors_of_batches(recorded: Recorded) -> None:
    texts = {}
    for index, error in product((0, 1, 12), (InputError("bad"), DeviceError("gone"),
                                             ValueError("other"))):
        found = _of_batch(index, error)
        texts[f"{index} {type(error).__name__}"] = (
            f"{type(found).__name__} {found} {getattr(found, '__notes__', [])} "
            f"{found is error} {found.__cause__ is error}")
    recorded("errors_of_batches", texts)
