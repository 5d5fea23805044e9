"""Near-duplicates of images by perceptual hash: found, left out before training, and what that left."""
