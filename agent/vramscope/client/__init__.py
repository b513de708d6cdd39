"""Reads runs from a server, in Python: ``vramscope.Client``."""
