"""E2B over loopback for its unmodified SDK: the control API and the daemon in each sandbox."""
