"""Update rules: one class per file, each builds a torch optimizer."""
