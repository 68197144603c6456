"""HAP-VR: hierarchical learning for average-precision-oriented video retrieval (Liu et al., ACM MM 2024)."""

__version__ = "0.1.0"
