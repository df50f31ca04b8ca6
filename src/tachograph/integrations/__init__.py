"""Integrations with training frameworks, each imported only by its users. `README.md` says how to add one.

An integration is imported only where it is used. Integrations share `_common`; only `zero_code` and `transformers` (for
`trl`) import others.
"""
