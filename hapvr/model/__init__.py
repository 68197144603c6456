"""From features to similarities: TopK-Chamfer, attention, the comparator network, and their
files."""
