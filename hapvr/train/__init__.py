"""Training of attention and comparator, on cached views or on views drawn during the step."""
