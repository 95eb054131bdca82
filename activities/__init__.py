"""Act. One module per step of the card; each activity is idempotent and knows ports, not clients."""
