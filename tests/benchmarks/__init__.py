"""The report: its own logic, and each of its rows once."""
