"""A trained model as one folder that scores raw video files anywhere."""

DEFAULT_PRECISION = 0.95
"""What verdicts and thresholds reach where nobody asks for another precision."""
