"""The client side of the agent that runs inside a sandbox; most providers use it."""
