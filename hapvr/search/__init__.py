"""Search over a collection: descriptors of frames and videos, and the index that finds their
neighbours."""

DEFAULT_TOP = 20
"""Matches of a query that are shown."""
