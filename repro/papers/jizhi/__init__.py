"""The choice of a collective by message size (Jia et al., arXiv:1807.11205)."""
