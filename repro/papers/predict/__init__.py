"""A scale model: times with more processes than a run had, from its record; with its assumptions (docs/predict.md)."""
