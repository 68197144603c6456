"""Search over a collection: descriptors of frames and videos, and the index that finds their neighbours."""
