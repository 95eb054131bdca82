"""How a caller finds and attaches to a run, follows it, fetches its outcome and cancels it; settings of every process.

`web`, `service`, `cli`, `dev_stack` and `worker` may import it; it does not run in a workflow or an activity.
"""
