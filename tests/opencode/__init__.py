"""What `opencode/` promises."""
