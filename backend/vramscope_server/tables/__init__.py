"""Every table of runs as rows with typed columns, for CSV, JSON and Parquet.

Columns come from the types of the answers, so that a table has the names, units and descriptions of the API.
"""
