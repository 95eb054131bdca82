"""`agent-runs`: what people type. Every command talks to a run through `client/`, never around it."""
