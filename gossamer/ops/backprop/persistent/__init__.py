"""Back-propagation with one launch a pass over the samples."""
