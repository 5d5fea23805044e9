"""LaTeX, Markdown and figures for a paper."""
