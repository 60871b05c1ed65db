"""Networks: readers of files, the graph, shape inference, and passes that rewrite the graph."""
