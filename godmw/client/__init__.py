"""How a job is talked to from outside: admin messages, run directories, and the handle on top."""
