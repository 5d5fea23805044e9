"""The result of a trial: its status, figures and warnings."""
