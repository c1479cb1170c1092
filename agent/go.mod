module sandboxkit/agent

go 1.24
