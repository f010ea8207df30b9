"""The command line, `gpufair`."""
