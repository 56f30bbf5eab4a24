"""What every test shares: how hypothesis searches, how child processes end, and which worker runs what."""

from hypothesis import settings

pytest_plugins = ["tests.children", "tests.workers"]

# The gate says the same thing twice, on a busy machine too; `make soak` searches at random and further.
settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile("gate")
