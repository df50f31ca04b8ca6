"""Bridges: each folder connects Tachograph to one other tool, with its sink, importer, facade and options."""
