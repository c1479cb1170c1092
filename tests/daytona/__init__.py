"""Tests of the daytona provider, through Daytona's own clients against the emulator."""
