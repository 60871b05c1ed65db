"""Choice of algorithms, and comparison with baseline plans."""
