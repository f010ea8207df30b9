"""What the ledger says at one moment, for all commands that show the present."""
