"""CSV, Parquet and JSON lines."""
