"""Augmented clips for training (S2VS 3.2 and its Table 11; HAP-VR B.3)."""
