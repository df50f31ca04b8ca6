"""The cost of the black box."""
