"""Training of attention and comparator on cached views."""
