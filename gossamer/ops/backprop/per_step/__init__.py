"""Back-propagation with one launch a step, as published."""
