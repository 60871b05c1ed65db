"""Object detection: preparing photos for a network, making boxes from the network's outputs,
non-maximum suppression, and drawing."""
