"""The collective algorithms that every engine's communication goes through."""
