"""Why something waits, and what would help."""
