"""Frozen networks and what they give: region features, teacher embeddings, whitening,
extraction."""
