"""Folders of agents that share no volume with Paperclip: what is in them, and the store that keeps it."""
