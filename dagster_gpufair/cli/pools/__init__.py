"""``gpufair pools``, ``cordon`` and ``uncordon``: the GPUs and nodes of each pool."""
