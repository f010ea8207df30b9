"""Example code locations: two algorithm teams and the platform team that share the GPUs."""
