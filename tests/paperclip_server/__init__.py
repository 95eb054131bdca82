"""Scenarios on a real Paperclip on this machine, with the built plugin in it."""
