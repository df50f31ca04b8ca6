"""Benchmarks of training plugins."""
