"""An emulator of E2B for its unmodified SDK: the control API, and the daemon in each sandbox."""
