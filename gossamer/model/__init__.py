"""How a network comes in: readers, the graph, shape inference and passes that rewrite it."""
