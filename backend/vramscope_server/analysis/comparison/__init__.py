"""Runs against a baseline, as people write it down: names of combinations, rows, what is not comparable, tables as text."""
