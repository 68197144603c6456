"""Labelled sets of video files: the generated demo corpus, and copy benchmarks made from a user's
own clips."""
