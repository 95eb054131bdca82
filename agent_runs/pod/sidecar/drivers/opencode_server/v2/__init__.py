"""OpenCode 2: messages, and live events that nobody can read again."""
