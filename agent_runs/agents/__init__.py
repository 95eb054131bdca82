"""Agent programs, one package each: their command line, configuration, output and how it is judged.

Pure functions over `agent_runs.contracts` only; activities, web, client and command line may import them.
"""
