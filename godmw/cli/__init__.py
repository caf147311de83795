"""The command line: one file a verb, a thin layer over the rooms below."""
