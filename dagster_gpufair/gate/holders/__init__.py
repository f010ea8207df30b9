"""Runs as what holds GPUs: what is to be seen of them, and of their processes."""
