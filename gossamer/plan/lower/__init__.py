"""Lowers the nodes of a graph to problems of ops."""
