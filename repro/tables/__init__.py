"""Rows of plain values and the tables that readers see of them: terminal, Markdown, LaTeX, CSV, Parquet, page."""
