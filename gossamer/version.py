"""The version of this package, for files that keep it and for `gossamer.__version__`."""

PACKAGE_VERSION = "0.1.0"
