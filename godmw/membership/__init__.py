"""Who is in: pure machines for the master (Coordinator) and the worker (Participant), and what they
share.
"""
