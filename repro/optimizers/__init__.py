"""Update rules: one class a file, each builds a torch optimizer."""
