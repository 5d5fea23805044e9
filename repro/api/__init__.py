"""The Python interface to records: `repro.open` and what it returns. The commands that show a record use the same."""
