"""Shape inference: the graph of one batch size with every shape and dtype known."""
