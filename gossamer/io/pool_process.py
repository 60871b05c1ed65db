"""The program of a process that does tasks for the process that started it; see process_pool.py.

The program reads tasks from standard input and writes replies to standard output. It ends when the
process that started it ends, even where that process is killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossamer.errors import GossamerError

_SCORE = "500"
"""Linux's oom_score_adj of this process, on a scale that ends at 1000. Where memory runs out, Linux
kills this process before most others."""


class NoProcessError(GossamerError):
    """No other process is left to do a task. The process that submitted the task can do the task
    itself."""


def main() -> None:
    """Does one task after another until the process that started this one ends or closes the pipe.
    """
    # an interrupt from the keyboard is for the process that started this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_SCORE)
    replies = os.fdopen(os.dup(1), "wb")
    # what libraries print must not come between the replies
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(inbox,), daemon=True).start()

    def reply(kind: str, value: object = None) -> None:
        pickle.dump((kind, value), replies, protocol=5)
        replies.flush()

    def demand() -> Any:
        reply("demands")
        return inbox.get()

    while True:
        task, may_demand = inbox.get()
        reply(*_done(task, (demand,) if may_demand else ()))


def _done(task: bytes, more: tuple[Callable[[], Any], ...]) -> tuple[str, object]:
    """Does a task, and returns the kind and the value of the reply. more: further arguments of the
    task's function."""
    try:
        # the message holds the task as pickled bytes: where the task cannot be imported here, only
        # the task fails, and the error becomes its reply
        function, arguments = pickle.loads(task)
    except Exception as error:
        return "failed", NoProcessError(f"another process cannot import a task: {error}")
    try:
        return "done", function(*arguments, *more)
    except Exception as error:
        return "failed", _portable(error)


def _read(inbox: queue.SimpleQueue[Any]) -> None:
    """Reads messages in a thread of its own, so that even in the middle of a task the process ends
    when the process that started it ends."""
    try:
        while True:
            inbox.put(pickle.load(sys.stdin.buffer))
    except EOFError:
        if os.getpgrp() == os.getpid():
            # processes that this one started end with it
            os.killpg(0, signal.SIGKILL)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """Returns an error that can be pickled: the error itself, or a GossamerError with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return GossamerError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    main()
