"""How an activity gets the request of its run, and the secrets in it.

Imports paperclip and contracts. Activities and the worker import it.
"""
