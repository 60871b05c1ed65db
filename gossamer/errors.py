"""The errors a user can meet. Each message is one line: what is wrong, where, and what to do."""


class GossamerError(Exception):
    """Base of all errors that gossamer raises on purpose; the command line exits with code 2."""


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
    """Training that diverged; the message says in which pass and at which sample, and what to
    do. The network keeps the parameters from before that pass."""


class GossamerWarning(UserWarning):
    """Something the user should know although the work goes on: NaN weights, a cache that
    cannot be written, layers that ran elsewhere than asked."""


def first_line(error: BaseException) -> str:
    """The first line that an error says, else its name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
