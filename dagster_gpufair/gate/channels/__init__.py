"""What the daemon and the code of a run say to each other, in a folder for each run."""
