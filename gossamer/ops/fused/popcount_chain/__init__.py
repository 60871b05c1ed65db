"""Products with matrices of signs, one after another, in one step."""
