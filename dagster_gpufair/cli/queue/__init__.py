"""``gpufair queue``: what waits and runs in each pool."""
