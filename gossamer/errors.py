"""The errors and warnings that gossamer raises, and functions that make their messages.

A message is one line that says what is wrong, where, and what to do. Its length is bounded, since
names and values in it come from files that anybody may have written. Only a CompileError has the
whole log of a build.
"""

from __future__ import annotations

import functools
import re
import reprlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from pathlib import Path

MOST_CHARACTERS = 500
"""The most characters of an error's message; a longer message loses its middle."""
MOST_QUOTED = 80
"""The most characters of a name or value that a message quotes."""
_MOST_FILES = 10_000
"""The most files of a folder whose names are compared with that of a missing file."""
_Function = TypeVar("_Function", bound=Callable[..., Any])
_PARTS = reprlib.Repr()
"""Writes values as text, and shortens long or deeply nested ones."""
_PARTS.maxlist = _PARTS.maxtuple = _PARTS.maxdict = _PARTS.maxset = MOST_QUOTED // 2
_PARTS.maxstring = _PARTS.maxlong = _PARTS.maxother = MOST_QUOTED
_PARTS.maxlevel = 4
_URL = re.compile(r"\b(https?|ftp|s3|gs|hf):/(?!/)")
"""Matches the beginning of a URL from which pathlib has removed a slash."""


def one_line(text: str) -> str:
    """Return the text with line breaks and other control characters escaped.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    str
        One line of printable characters.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
                   for c in text)


def cut(text: str, most: int = MOST_QUOTED) -> str:
    """Return the text, without its middle where it is too long.

    Parameters
    ----------
    text : str
        Any text.
    most : int, default 80
        The most characters of the result.

    Returns
    -------
    str
        The text, or its beginning and its end with "..." between.
    """
    if len(text) <= most:
        return text
    end = (most - 3) // 3
    return f"{text[:most - 3 - end]}...{text[-end:]}"


def quoted(value: Any) -> str:
    """Return a name or value, from a file or from the user, as messages quote it.

    Parameters
    ----------
    value : object
        A text, number, or list of these.

    Returns
    -------
    str
        The value as Python writes it, in one line of at most 80 characters.
    """
    # the value may be huge or deeply nested: only a part of it is written
    if isinstance(value, str) and len(value) > 2 * MOST_QUOTED:
        value = value[:MOST_QUOTED] + value[-MOST_QUOTED:]
    elif isinstance(value, bytes):
        value = value[:2 * MOST_QUOTED]
    elif isinstance(value, list | tuple | dict | set):
        return cut(one_line(_PARTS.repr(value)))
    return cut(one_line(repr(value)))


def closest(name: str, names: Iterable[str], most: int = 5, cutoff: float = 0.4) -> list[str]:
    """Return the names that are similar to a name, the most similar one first.

    Parameters
    ----------
    name : str
        A name, perhaps mistyped.
    names : iterable of str
        The names that there are.
    most : int, default 5
        The most names that are returned.
    cutoff : float, default 0.4
        How similar they must be, from 0 to 1.

    Returns
    -------
    list of str
        The similar names.
    """
    from difflib import get_close_matches

    by_small = {each.lower(): each for each in sorted(names)}
    return [by_small[each] for each in get_close_matches(name.lower(), by_small, most, cutoff)]


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return the end of a message that asks whether a similar name is meant.

    Parameters
    ----------
    name : object
        What was given in place of a name.
    names : iterable of str
        The names that there are.

    Returns
    -------
    str
        Such as "; did you mean 'host'?"; "" where no name is similar.
    """
    close = closest(name, names, 1, 0.6) if isinstance(name, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def similar_file(path: str | Path) -> str:
    """Return the end of a message that asks whether a file with a similar name is meant.

    Parameters
    ----------
    path : str or Path
        The file that was asked for.

    Returns
    -------
    str
        Such as "; did you mean 'nets/tiny.onnx'?"; "" where the file is there, or no file of its
        folder has a similar name.
    """
    from pathlib import Path

    path = Path(path)
    with suppress(OSError):
        names = (each.name for each in islice(path.parent.iterdir(), _MOST_FILES))
        if not path.exists() and (close := closest(path.name, names, 1, 0.85)):
            return f"; did you mean {quoted(str(path.with_name(close[0])))}?"
    return ""


def with_known_names(function: _Function) -> _Function:
    """Return a function whose error for an unknown argument names a similar one.

    Parameters
    ----------
    function : callable
        A function of named arguments.

    Returns
    -------
    callable
        The function with this TypeError.
    """
    import inspect

    names = inspect.signature(function).parameters

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in names:
                raise TypeError(f"{function.__name__}() has no argument {name!r}"
                                f"{did_you_mean(name, names)}")
        return function(*args, **kwargs)

    return cast(_Function, called)


def kind_of(value: object) -> str:
    """Return the type of a value with its article.

    Parameters
    ----------
    value : object
        Any value.

    Returns
    -------
    str
        Such as "an int" or "a list".
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' or name == 'ndarray' else 'a'} {name}"


def one_of(value: object, names: Iterable[str]) -> str:
    """Return the end of a message about an option's wrong value.

    Parameters
    ----------
    value : object
        The wrong value.
    names : iterable of str
        The values that there are.

    Returns
    -------
    str
        The values that are expected, and the one that may be meant.
    """
    listed = list(names)
    return f"expected one of {', '.join(listed)}{did_you_mean(value, listed)}"


def installing(extra: str) -> str:
    """Return the words that tell a user how to install an extra of gossamer.

    Parameters
    ----------
    extra : str
        The name of the extra in pyproject.toml.

    Returns
    -------
    str
        The command, and the folder to call it in, since no package index has gossamer.
    """
    return f"pip install '.[{extra}]' in gossamer's checkout"


class GossamerError(Exception):
    """The base class of all errors that gossamer raises on purpose.

    The command line exits with code 2 on such an error. The message becomes one line of at most
    `most_characters`, except in a CompileError.
    """

    most_characters = MOST_CHARACTERS

    def __init__(self, message: object = "") -> None:
        text = _URL.sub(r"\1://", str(message))
        if len(text) > self.most_characters or not text.isprintable():
            lines = (cut(line.strip(), 4 * self.most_characters) for line in text.splitlines())
            text = cut(one_line(" ".join(filter(None, lines))), self.most_characters)
        super().__init__(text)


class ModelError(GossamerError):
    """A model file that cannot be read, or a node in it that is malformed."""


class UnsupportedError(ModelError):
    """A valid model that uses an op, attribute or shape that gossamer does not compute."""


class InputError(GossamerError):
    """A wrong input: array shape or dtype, image file, option value."""


class ArrayError(InputError, ValueError):
    """A wrong array of samples, labels or weights that an MLP is given.

    An ArrayError is a ValueError as well, which scikit-learn expects of wrong data.
    """


class NotFittedError(InputError):
    """An MLP that is used before it is trained.

    The error is scikit-learn's NotFittedError as well where a program has imported scikit-learn.
    """


class DeviceError(GossamerError):
    """A device that is absent, unusable, or failed while working."""


class OutOfMemoryError(DeviceError):
    """A device allocation that failed; the message names the number of bytes and their use."""


class DeviceLostError(DeviceError):
    """A device that failed, and on which this process can compute nothing any more."""


class CompileError(DeviceError):
    """A kernel that the device's compiler refused; the message has the whole build log."""

    def __init__(self, message: object = "") -> None:
        Exception.__init__(self, str(message))


class CompilerEndedError(CompileError):
    """A process that ended before it had compiled its kernel; another try may succeed."""


class QueueFullError(GossamerError):
    """A request that comes while the queue of waiting requests is full; try again later."""


class DeadlineError(GossamerError):
    """A request whose deadline passed before it was computed."""


class TrainingError(GossamerError):
    """Training that diverged.

    The message says in which epoch and at which sample training diverged, and what to do. The
    network keeps the parameters that it had before that epoch.
    """


class GossamerWarning(UserWarning):
    """A condition that does not stop the work.

    Such as NaN weights, a cache that cannot be written, or layers that run on another device than
    requested.
    """


class ConvergenceWarning(GossamerWarning):
    """Training used up its epochs while it still improved.

    The warning is scikit-learn's ConvergenceWarning as well where a program has imported
    scikit-learn.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class.

    Parameters
    ----------
    error : BaseException
        The error.

    Returns
    -------
    str
        One line of at most 160 characters.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return cut(one_line(lines[0]), 2 * MOST_QUOTED) if lines else type(error).__name__
