"""The errors and warnings that gossamer raises, and helpers for their messages.

A message is one line that says what is wrong, where, and what to do. The length of a message is
limited, because messages quote names and values from untrusted files. Only a CompileError contains
a complete build log.
"""

from __future__ import annotations

import functools
import re
import reprlib
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from pathlib import Path

MOST_CHARACTERS = 500
"""Maximum characters of an error message; a longer message loses its middle."""
MOST_QUOTED = 80
"""Maximum characters of a name or value quoted in a message."""
_MOST_FILES = 10_000
"""Maximum number of files in a folder that are compared with the name of a missing file."""
_Function = TypeVar("_Function", bound=Callable[..., Any])
_PARTS = reprlib.Repr()
"""Formats values as text, and shortens long or deeply nested values."""
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
    """Return the text, with its middle removed if it is too long.

    Parameters
    ----------
    text : str
        Any text.
    most : int, default 80
        Maximum characters of the result.

    Returns
    -------
    str
        The text, or its beginning and end joined by "...".
    """
    if len(text) <= most:
        return text
    end = (most - 3) // 3
    return f"{text[:most - 3 - end]}...{text[-end:]}"


def quoted(value: Any) -> str:
    """Return a name or value as messages quote it.

    Parameters
    ----------
    value : object
        A text, number or list, from a file or from the user.

    Returns
    -------
    str
        The Python literal of the value, in one line of at most 80 characters.
    """
    # the value may be huge or deeply nested: format only a part of it
    if isinstance(value, str) and len(value) > 2 * MOST_QUOTED:
        value = value[:MOST_QUOTED] + value[-MOST_QUOTED:]
    elif isinstance(value, bytes):
        value = value[:2 * MOST_QUOTED]
    elif isinstance(value, list | tuple | dict | set):
        return cut(one_line(_PARTS.repr(value)))
    return cut(one_line(repr(value)))


def closest(name: str, names: Iterable[str], most: int = 5, cutoff: float = 0.4) -> list[str]:
    """Return the names similar to a given name, most similar first.

    Parameters
    ----------
    name : str
        A name, perhaps mistyped.
    names : iterable of str
        The existing names.
    most : int, default 5
        Maximum number of returned names.
    cutoff : float, default 0.4
        Minimum similarity, from 0 to 1.

    Returns
    -------
    list of str
        The similar names.
    """
    from difflib import get_close_matches

    by_small = {each.lower(): each for each in sorted(names)}
    return [by_small[each] for each in get_close_matches(name.lower(), by_small, most, cutoff)]


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return a suggestion of a similar name, to end a message with.

    Parameters
    ----------
    name : object
        The unknown name. A value that is not a string is similar to no name.
    names : iterable of str
        The existing names.

    Returns
    -------
    str
        For example "; did you mean 'host'?", or "" if no name is similar.
    """
    close = closest(name, names, 1, 0.6) if isinstance(name, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def similar_file(path: str | Path) -> str:
    """Return a suggestion of a similar file, to end a message with.

    Parameters
    ----------
    path : str or Path
        The requested file.

    Returns
    -------
    str
        For example "; did you mean 'nets/tiny.onnx'?", or "" if the file exists or its folder
        contains no file with a similar name.
    """
    from pathlib import Path

    path = Path(path)
    with suppress(OSError):
        names = (each.name for each in islice(path.parent.iterdir(), _MOST_FILES))
        if not path.exists() and (close := closest(path.name, names, 1, 0.85)):
            return f"; did you mean {quoted(str(path.with_name(close[0])))}?"
    return ""


def with_known_names(function: _Function) -> _Function:
    """Decorate a function so that errors about unknown keyword arguments suggest similar names.

    Parameters
    ----------
    function : callable
        A function with keyword arguments.

    Returns
    -------
    callable
        The function, with the suggestion in its TypeError.
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
        For example "an int" or "a list".
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' or name == 'ndarray' else 'a'} {name}"


def one_of(value: object, names: Iterable[str]) -> str:
    """Return the expected values of an option, to end a message with.

    Parameters
    ----------
    value : object
        The wrong value.
    names : iterable of str
        The valid values.

    Returns
    -------
    str
        The valid values, and a suggestion if a valid value is similar to the wrong one.
    """
    listed = list(names)
    return f"expected one of {', '.join(listed)}{did_you_mean(value, listed)}"


def check_choice(name: str, value: object, choices: Collection[str], *,
                 shown: Callable[[object], str] = quoted) -> None:
    """Raise InputError if a value is not among the choices.

    Parameters
    ----------
    name : str
        The name of the parameter.
    value : object
        Its value.
    choices : collection of str
        The valid values.
    shown : callable, optional
        Function that returns the value as the message shows it.
    """
    if value not in choices:
        raise InputError(f"{name} {shown(value)}: {one_of(value, choices)}")


def installing(extra: str) -> str:
    """Return the command that installs an extra of gossamer.

    Parameters
    ----------
    extra : str
        The name of the extra in pyproject.toml.

    Returns
    -------
    str
        The command and the folder to run it in, because gossamer is on no package index.
    """
    return f"pip install '.[{extra}]' in gossamer's checkout"


class GossamerError(Exception):
    """The base class of all errors that gossamer raises on purpose.

    The command line exits with code 2 on such an error. Except in a CompileError, the message is
    reduced to one line of at most `most_characters`.
    """

    most_characters = MOST_CHARACTERS

    def __init__(self, message: object = "") -> None:
        text = _URL.sub(r"\1://", str(message))
        if len(text) > self.most_characters or not text.isprintable():
            lines = (cut(line.strip(), 4 * self.most_characters) for line in text.splitlines())
            text = cut(one_line(" ".join(filter(None, lines))), self.most_characters)
        super().__init__(text)


class ModelError(GossamerError):
    """A model file that cannot be read, or has a malformed node."""


class UnsupportedError(ModelError):
    """A valid model with an unsupported op, attribute or shape."""


class InputError(GossamerError):
    """A wrong input: array shape or dtype, image file, option value."""


class ArrayError(InputError, ValueError):
    """Invalid samples, labels or weights passed to an MLP.

    An ArrayError is also a ValueError, which scikit-learn expects for invalid data.
    """


class NotFittedError(InputError):
    """An MLP that is used before it is trained.

    If the program has imported scikit-learn, the error is also a scikit-learn NotFittedError.
    """


class DeviceError(GossamerError):
    """A device that is absent, unusable, or failed while working."""


class OutOfMemoryError(DeviceError):
    """A failed device allocation; the message names its size and purpose."""


class DeviceLostError(DeviceError):
    """A failed device that this process can no longer use."""


class CompileError(DeviceError):
    """A kernel that failed to compile; the message contains the log."""

    def __init__(self, message: object = "") -> None:
        Exception.__init__(self, str(message))


class CompilerEndedError(CompileError):
    """A compiler process that ended before it compiled its kernel; retrying may succeed."""


class QueueFullError(GossamerError):
    """A request rejected because the queue is full; try again later."""


class DeadlineError(GossamerError):
    """A request whose deadline passed before it was computed."""


class TrainingError(GossamerError):
    """Training that diverged.

    The message names the epoch and the sample, and says what to do. The network keeps its
    parameters from before that epoch.
    """


class GossamerWarning(UserWarning):
    """A condition that does not stop the work.

    Examples are NaN weights, a cache that cannot be written, and layers that run on another device
    than requested.
    """


class ConvergenceWarning(GossamerWarning):
    """Training that reached its last epoch while it was still improving.

    If the program has imported scikit-learn, the warning is also a scikit-learn
    ConvergenceWarning.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, or the class name.

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
