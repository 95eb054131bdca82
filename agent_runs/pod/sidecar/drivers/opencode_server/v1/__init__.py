"""OpenCode 1.18 and later versions of 1: a journal of events."""
