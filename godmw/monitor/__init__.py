"""What a job says about itself on disk: a line for every step, a line for every event."""
