"""A real Paperclip on this machine, the built plugin in it, and stories of what happens to runs there."""
