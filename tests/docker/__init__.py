"""The docker provider against a real daemon."""
