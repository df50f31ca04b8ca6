"""Captures the code of a run in a process of its own."""
