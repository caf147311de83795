"""Which samples a step has, how they are fetched, and the record of what was computed."""
