"""Folders of agents that share no volume with Paperclip: what is in them, and the store that keeps it.

May be imported by service, web, cli and activities; knows Temporal and Kubernetes not at all.
"""
