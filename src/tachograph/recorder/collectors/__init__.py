"""Collectors: gather data beside the hot path, such as system load, the code of a run, and samples of completions."""
