"""What happens when a run is submitted: its tags, whose it is, what it may ask."""
