"""Files that are too large for the database: received snapshot files, and the columns that they are converted to.

They lie in a folder (``folder``), or in a bucket of an S3-compatible store (``bucket``).
"""
