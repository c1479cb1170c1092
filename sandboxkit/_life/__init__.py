"""The life of the process: its background loop, forks, exit and locks, and what owners of sandboxes leave behind."""
