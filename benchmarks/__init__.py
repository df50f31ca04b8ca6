"""What recording a run costs, beside its budgets and its peers: ``python -m benchmarks``."""
