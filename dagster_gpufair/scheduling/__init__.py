"""The decision: which waiting requests start now, and why the others wait. Pure functions."""
