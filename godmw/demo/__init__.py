"""`godmw demo`: a small real training, what happens to it, and what it shows."""
