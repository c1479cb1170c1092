"""Shells that stay for the next command: none is started for each, and no call but one is made.

A line leads to such a shell: bytes both ways, over whatever a vendor has. `lines` keeps the lines of
a sandbox, `orders` has what a shell is told, `scripts` what it does, `channel` takes apart what it
says, and `running` follows one command.
"""
