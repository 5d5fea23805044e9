"""Evidence -> verdicts, their sentences and their claims."""
