"""Audits: rules of best practice, applied to runs, published results and MLflow experiments."""
