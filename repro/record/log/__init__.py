"""The log of a trial: `schema` has a model for every event, `reading` turns lines into these models."""
