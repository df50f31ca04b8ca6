"""The cost of listing, filtering and sorting many runs."""
