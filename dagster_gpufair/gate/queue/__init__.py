"""A pass of the daemon: what is new, what may start under Dagster's own limits, what is launched."""
