"""MLflow: a sink and an importer."""
