"""Sums among the members of a generation: schedule, ring, links, buckets, reducer."""
