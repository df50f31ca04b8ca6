"""Glue for training frameworks: one small file each, imported only by those who use that framework.

None of these is imported by anything else in the package, and none imports another, but for what begins with an
underscore, which they share.
"""
