"""A loopback server that speaks Daytona's REST API, toolbox and terminals to its own clients."""
