"""Captures the code and the environment of a run in a process of its own."""
