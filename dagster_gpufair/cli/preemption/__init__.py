"""``gpufair approvals``, ``approve``, ``reject``, ``pause``, ``resume``, ``keep``: people and preemption."""
