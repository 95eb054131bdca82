"""The agents that speak the Agent Client Protocol: their real programs, and what was captured of them."""
