"""The programs of a kernel that run in the sandbox, on Python 3.8 and later."""
