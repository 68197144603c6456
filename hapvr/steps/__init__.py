"""The steps of the chain, each one function over a project: what Dagster's assets and the command
line both call."""
