"""Parts of the measurement of tensor parallel layers: the grid of ranks, products on it, blocks, formulas, memory."""
