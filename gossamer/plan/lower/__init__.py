"""From nodes of a graph to problems of ops."""
