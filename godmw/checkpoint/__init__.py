"""State that all workers share: collected, compared, sent to a joiner."""
