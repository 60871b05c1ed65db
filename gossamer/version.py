"""The version of this package, which files record and `gossamer.__version__` returns."""

PACKAGE_VERSION = "0.1.0"
