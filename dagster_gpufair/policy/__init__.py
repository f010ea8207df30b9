"""The rules people wrote: models, loading and checking of the policy file."""

from dagster_gpufair.policy.checks import problems_of
from dagster_gpufair.policy.loading import parse_policy, policy_from, read_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.notes import notes_of
from dagster_gpufair.policy.plain import sentences
from dagster_gpufair.policy.problems import PolicyError, Problem
from dagster_gpufair.policy.schema import json_schema
from dagster_gpufair.policy.starter import starter_text

__all__ = [
    "Policy",
    "PolicyError",
    "Problem",
    "json_schema",
    "notes_of",
    "parse_policy",
    "policy_from",
    "problems_of",
    "read_policy",
    "sentences",
    "starter_text",
]
