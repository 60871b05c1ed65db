"""The ops of a graph, each defined in one place: shapes, evaluation, value facts and more."""
