"""Drives an agent that speaks the Agent Client Protocol, version 1: one turn, as the lines that `opencode run` writes.

The standard library only. The agent is hostile: whatever it writes is bounded, and nothing of it is believed.
"""
