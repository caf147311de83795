"""A whole job in one thread: the shipped machines under a virtual clock and network, one seed a run."""
