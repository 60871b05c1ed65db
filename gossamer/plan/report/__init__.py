"""Reports: which algorithm runs each layer of a plan, as rows, text and an HTML page."""
