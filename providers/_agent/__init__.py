"""What local, docker and kubernetes share: the client side of the agent inside a sandbox."""
