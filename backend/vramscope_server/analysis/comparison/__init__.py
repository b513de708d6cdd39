"""Comparison of runs with a baseline: labels of combinations, rows, reasons against comparing, and tables as text."""
