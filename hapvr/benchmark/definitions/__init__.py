"""Benchmark definitions: readers of the files as their authors publish them, and of the compact ones shipped here."""
