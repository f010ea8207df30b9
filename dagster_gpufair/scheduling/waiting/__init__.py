"""Why what is left waits."""
