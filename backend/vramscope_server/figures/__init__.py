"""Plotly figures, one a file, built once in Python: page, notebook and report draw the same.

``registry.py`` lists the figures of runs and the data that each one needs.
"""
