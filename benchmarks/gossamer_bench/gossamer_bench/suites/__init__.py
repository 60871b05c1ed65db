"""The benchmark suites: which layers, networks and training runs are measured, and their shapes."""
