"""Benchmarks of Tachograph against its budgets and other tools: ``python -m benchmarks``."""
