"""Language models: windows of tokens, a GPT, its loss."""
