"""Serves networks over HTTP: the Open Inference Protocol, pictures, and dynamic batching."""
