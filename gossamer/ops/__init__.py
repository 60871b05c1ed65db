"""What can be computed: one folder an op, with its problem, reference and algorithms."""
