"""A team's server and the trainers that send to it."""
