"""The backends that ship with sandboxkit, imported as `sandboxkit.providers`."""
