"""Back-propagation with one launch per step, as published."""
