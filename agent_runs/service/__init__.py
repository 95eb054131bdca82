"""What a worker process is: settings, startup, health, what surrounds activities, polling, stop signals, build id.

`cli`, `dev_stack` and `worker` may import it.
"""
