"""The HTTP server of networks: the Open Inference Protocol, pictures, and dynamic batching."""
