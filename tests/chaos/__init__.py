"""Rounds of clients that are killed, cut off and cancelled at random: nothing may be left of them.

`run.rounds` is the driver, `client` the program that each round starts, `calls.faulted_calls` the
count of how calls end when their connection is broken under them.
"""
