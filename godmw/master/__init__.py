"""The master's process: sockets, files and signals around the pure Coordinator.  No torch."""
