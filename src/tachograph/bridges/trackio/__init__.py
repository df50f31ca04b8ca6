"""trackio: an importer."""
