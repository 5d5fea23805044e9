"""The MLflow reporter: replays a record to a tracking store."""
