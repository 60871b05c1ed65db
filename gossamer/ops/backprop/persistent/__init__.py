"""Back-propagation with one launch per epoch."""
