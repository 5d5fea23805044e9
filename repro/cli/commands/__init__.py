"""One file per subject, each with its click commands: parse, call one function, print, exit code."""
