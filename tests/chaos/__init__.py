"""Clients that are killed, cut off and cancelled at random, and calls under faults: nothing may be left or hang."""
