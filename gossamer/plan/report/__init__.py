"""Reports on which algorithm runs each layer: rows, text and an HTML page."""
