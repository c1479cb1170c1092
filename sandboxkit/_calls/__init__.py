"""The parts of a call: checked arguments, streams, timers, the order of file calls, and default file operations."""
