"""Dagster assets: a file per stage. Each reads, calls one library function, and says what came of it."""
