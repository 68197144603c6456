"""Limits of the service that the command line names."""

MAX_AT_ONCE = 64
"""The most searches at the same time: as many processes may search, and as many threads wait for
them."""
