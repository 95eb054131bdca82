"""The in-pod runner under real shells with real processes, and its frames."""
