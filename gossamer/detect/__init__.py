"""Object detection: preparing photos for a network, making boxes of its outputs, non-maximum
suppression, and drawing."""
