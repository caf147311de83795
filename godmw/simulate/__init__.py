"""A whole job in one thread: the shipped machines under a virtual clock and network, replayed by one seed.
"""
