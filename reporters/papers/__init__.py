"""Pages, sections and tables of what `repro.papers` measures."""
