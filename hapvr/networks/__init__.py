"""Frozen networks and their outputs: region features, teacher embeddings, whitening, extraction."""
