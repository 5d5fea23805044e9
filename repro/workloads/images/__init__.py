"""Image data sets on disk and the networks that are trained on them."""
