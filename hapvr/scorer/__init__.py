"""A trained model as one folder that scores raw video files anywhere."""

DEFAULT_PRECISION = 0.95
"""The precision of verdicts and thresholds unless another one is asked for."""
