from __future__ import annotations

from hypothesis import settings

# The number of examples of a test that does not say its own; `test_scheduling_always` scales its by it.
settings.register_profile("quick", max_examples=10)
settings.register_profile("thorough", max_examples=2000)
