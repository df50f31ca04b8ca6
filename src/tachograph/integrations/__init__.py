"""Integrations with training frameworks, each imported only by its users. `README.md` says how to add one.

Nothing else in the package imports an integration, and integrations do not import each other. They share `_common`.
"""
