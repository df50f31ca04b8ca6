"""The cost of logging media."""
