"""The training ledger: what was fed to a trial's model, loss and optimizer, and what was written into its weights."""
