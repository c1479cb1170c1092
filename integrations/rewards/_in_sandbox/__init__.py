"""Programs that graders run inside sandboxes; they need nothing but Python 3.8."""
