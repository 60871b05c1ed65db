"""Detection: photos for a detecting network, boxes of its outputs, suppression and drawing."""
