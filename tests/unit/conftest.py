"""Its folder is one that tests import their samples from."""
