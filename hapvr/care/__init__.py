"""Keeping a data root well: verifying, repairing, forgetting, and what needs a person."""
