"""Decisions stated as files."""
