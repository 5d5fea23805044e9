"""Safe reading of files that others wrote: bounded files, strict JSON, printable text."""
