"""``gpufair demo``: Dagster with three teams that share GPUs, to look at."""
