"""Programs that graders run inside sandboxes; they need only Python 3.8 or later."""
