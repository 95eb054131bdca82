"""OpenCode: command line, runtime configuration, events, fold, verdict and prices; no clock, file or network.

Imports only `agent_runs.contracts`; activities, web, client and command line may import it. `fold.Fold` takes what
OpenCode wrote, line by line, and reports how the run ended; `verdict` holds the order of judgement. Facts about
OpenCode were observed on 1.18.33 unless a comment names another version.
"""
