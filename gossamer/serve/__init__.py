"""Networks behind HTTP: the Open Inference Protocol, pictures, and dynamic batching."""
