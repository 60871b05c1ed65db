"""Lowering of graph nodes to problems of ops."""
