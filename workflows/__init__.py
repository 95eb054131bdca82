"""Decide. `agent_run.py` is the story of one run; nothing here touches the world."""
