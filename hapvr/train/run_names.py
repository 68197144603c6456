"""What is in the folder of a training, for those who look for it without what trains."""

RUN_NAME = "run.json"
FAILURE_NAME = "failure.txt"
RESULT_NAME = "result.json"
"""Written last, when a training has come to its end."""
CHECKPOINTS = "checkpoints"
NETWORK = "network"
