"""The final report of a trial, after its clock has stopped."""
