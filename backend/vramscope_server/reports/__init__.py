"""What command line and server both say of runs: their facts in words, and reports as HTML files."""
