"""What a worker process is: settings, startup, health, polling, slots, stop signals, build id.

`cli`, `dev_stack` and `worker` may import it.
"""
