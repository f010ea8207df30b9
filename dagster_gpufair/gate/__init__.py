"""Admission in Dagster: tags, run coordinator, queue daemon."""
