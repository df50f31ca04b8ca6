"""Prometheus: a sink."""
