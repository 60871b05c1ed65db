"""Reading and preparation of labelled samples."""
