"""A loopback server that speaks Modal's wire protocol to its unmodified SDK."""
