"""The pod's half of a workspace that is carried (docs/adr/0035): what reads it, sends it, and puts it back."""
