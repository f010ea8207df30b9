"""Which Dagster instance a command is about, and how it is opened."""
