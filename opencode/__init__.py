"""OpenCode's rules as pure functions: command line, runtime configuration, JSONL events, verdict, prices.

Nothing here reads a clock, a file or a network. `fold.Fold` takes what OpenCode wrote, line by line, and says how the
run ended; `verdict` holds the order of judgement. Facts about OpenCode were observed on 1.18.33 unless a line says
otherwise.
"""
