"""Update rules: a class each, which builds a torch optimizer."""
