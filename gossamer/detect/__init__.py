"""Object detection: preprocessing, decoding, suppression and drawing."""
