"""`repro audit`: the checklists alone, also over records that this harness did not make."""
