"""The cost of spans and of profiling, and how it develops over a long run."""
