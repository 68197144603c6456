"""Dagster assets, a file per step. Each calls one library function and reports the result."""
