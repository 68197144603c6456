"""Training of attention and comparator, on cached views or on views that are drawn in the step."""
