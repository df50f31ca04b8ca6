"""Aim: an importer."""
