"""What is said between godmw's processes: the table of messages and their wire encoding."""
