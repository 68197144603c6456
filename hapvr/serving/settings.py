"""Limits of the service that the command line names."""

MAX_AT_ONCE = 64
"""Searches that run at the same time at most: as many processes may search, and as many threads
wait for them."""
