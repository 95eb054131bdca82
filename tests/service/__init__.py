"""The worker's life: start, health, slots, end."""
