"""HTTP server: Open Inference Protocol, pictures, and dynamic batching."""
