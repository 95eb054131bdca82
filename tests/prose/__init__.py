"""Checks of what people read: names in docs, docstrings and comments exist, and words are the agreed ones."""
