"""The audit works out by itself what is held back; a daemon that keeps the rules is never accused."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_strategies import NOW, sound_policies, sound_states

from dagster_gpufair.ledger.entitlements import Known
from dagster_gpufair.policy.in_force import granted, held
from dagster_gpufair.scheduling.model import Account
from dagster_gpufair.scheduling.snapshot import Snapshot


@settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_the_audit_holds_back_what_the_decision_does(data: st.DataObject):
    policy = data.draw(sound_policies())
    state = data.draw(sound_states(policy, most_requests=0))
    snapshot, known = Snapshot(policy, state, NOW), Known()
    for pool in policy.pools:
        entitled = known.at(NOW, policy, pool, snapshot.rooms[pool].ready)
        use: Counter[Account] = Counter()
        for lease in state.leases:
            if lease.pool == pool:
                use[entitled.account(lease.team, lease.project)] += lease.gpus
        for name, team in policy.teams.items():
            for project in (None, *team.projects):
                account = entitled.account(name, project)
                audited = entitled.kept_from(account, use)
                decided = snapshot.accounts.held_back_by_others(
                    snapshot.accounts.account(account, pool)
                )
                # Grants and windows may want more than the pool has: the audit counts what there is.
                assert audited <= decided
                if not granted(policy, NOW) and not held(policy, NOW):
                    assert audited == decided
