"""The version of gossamer, as files record it and `gossamer.__version__` returns it."""

PACKAGE_VERSION = "0.1.0"
