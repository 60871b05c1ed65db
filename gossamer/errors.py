"""The errors that users can meet.

Each message is one line that says what is wrong, where, and what to do.
"""


class GossamerError(Exception):
    """The base class of all errors that gossamer raises on purpose.

    The command line exits with code 2 on such an error.
    """


class ModelError(GossamerError):
    """A model file that cannot be read, or a node in it that is malformed."""


class UnsupportedError(ModelError):
    """A valid model that uses an op, attribute or shape gossamer does not compute."""


class InputError(GossamerError):
    """A wrong input: array shape or dtype, image file, option value."""


class DeviceError(GossamerError):
    """A device that is absent, unusable, or failed while working."""


class OutOfMemoryError(DeviceError):
    """A device allocation that failed; the message says how many bytes and what for."""


class CompileError(DeviceError):
    """A kernel that the device's compiler refused; the message carries the build log."""


class TrainingError(GossamerError):
    """Training that diverged.

    The message says in which epoch and at which sample, and what to do. The network keeps the
    parameters from before that epoch.
    """


class GossamerWarning(UserWarning):
    """A warning about a condition that does not stop the work.

    Such conditions are NaN weights, a cache that cannot be written, or layers that ran on another
    device than requested.
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
        One line of text.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
