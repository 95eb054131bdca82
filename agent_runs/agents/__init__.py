"""Agent programs: their profiles, command lines and configurations.

Pure functions over `agent_runs.contracts` and `agent_runs.transcript`; activities, web, client and command line may
import them.
"""
