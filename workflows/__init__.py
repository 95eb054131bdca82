"""What decides: the workflow of one run and its pure rules. Nothing here does I/O.

Imports contracts and the pure rules of paperclip. The worker, client, service, web, cli and dev_stack import it.
"""
