"""How a network becomes a plan: lowered, tuned, chosen, run, stored and reported."""
