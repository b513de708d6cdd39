"""Callbacks, loggers and trackers for frameworks: they begin the watching where a framework takes such objects.

``agent.attach`` does the same in one line. Import them from ``vramscope.integrations``: it imports the framework of one at its
first use.
"""
