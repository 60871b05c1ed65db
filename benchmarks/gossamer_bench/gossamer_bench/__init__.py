"""The benchmarks of gossamer: suites of cases, the peers beside it, and tables and figures."""
