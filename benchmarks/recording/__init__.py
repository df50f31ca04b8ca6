"""The cost of recording: the log call, CPU, memory, imports, and the slow-down of real training loops.

This file imports nothing: the memory benchmark runs a module of this package as the bare process.
"""
