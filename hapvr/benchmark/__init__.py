"""Benchmarks of video retrieval: definitions, metrics, the evaluation protocol, the scoring engine
and reports."""
