"""The rules people wrote: models, loading and checking of the policy file."""
