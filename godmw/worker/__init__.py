"""The worker: the engine a training script talks to, its control thread, and the agent that starts it."""
