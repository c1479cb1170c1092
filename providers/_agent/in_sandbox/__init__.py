"""Programs that an agent runs inside its sandbox."""
