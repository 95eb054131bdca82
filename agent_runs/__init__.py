"""What the workflows, the activities, the worker and callers share, by subject."""
