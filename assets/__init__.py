"""Dagster assets, a file per stage. Each calls one library function and reports the result."""
