"""What a person can do about a reason to wait."""

from __future__ import annotations

_STEPS = {
    "quota_exhausted": "It starts once runs of its team end. More at once takes a larger quota, a grant "
    "for a time, or leave to borrow: `gpufair teams` shows what there is.",
    "borrow_limit": "It starts once runs of its team end, or as a smaller one (gpufair/gpus: 4-8). More "
    "at once takes a higher borrow_limit or a grant: `gpufair teams` shows both.",
    "ceiling": "It starts once runs of its team end, or if it declares less (gpufair/cpus, "
    "gpufair/memory_gib): `gpufair teams` shows the ceilings.",
    "lower_priority": "It starts after what the GPUs are kept for, or before it if it says that it is "
    "over in time (gpufair/max_duration): `gpufair queue` shows what is kept for whom.",
    "maintenance": "It starts once the nodes are back, or others are free: `gpufair pools` shows who "
    "took which out, and why.",
    "insufficient_gpus": "A run that names several pools (gpufair/pool: h100,a100) or takes fewer GPUs "
    "(gpufair/gpus: 4-8) starts sooner: `gpufair pools` shows what is free.",
    "fragmented": "A run that takes fewer GPUs on each node (gpufair/gpus_per_node, or gpufair/gpus: "
    "4-8) starts sooner: `gpufair pools` shows the nodes.",
    "reserve_held": "It starts once runs end, or in a pool that others do not keep: `gpufair pools` "
    "shows what is held back, and until when a window lasts.",
    "preempting": "Nothing is left to do: it starts once those that were given notice have gone.",
    "paused": "It starts once the queue goes on.",
    "approval": "A person has to approve that others are stopped for it.",
    "run_limit": "It starts once fewer runs run, or with a higher limit in dagster.yaml.",
    "environment": "It starts once its code location answers: Dagster's UI shows it under Deployment.",
}
_ELSE = "`gpufair queue` shows the whole line."


def next_step(reason: str | None) -> str:
    """A sentence for the end of what is said of a run; ``reason`` is None if it starts at once."""
    return _STEPS.get(reason or "", _ELSE)
