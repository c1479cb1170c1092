"""Errors that end a run in progress; the run writes a checkpoint before it raises one."""

__all__ = [
    "CheckpointError",
    "DivergedError",
    "GraderError",
    "RankError",
    "Stopped",
    "TrainingError",
]


class TrainingError(Exception):
    """The training cannot continue."""


class CheckpointError(TrainingError):
    """A checkpoint or an export could not be written; earlier ones are unchanged."""


class DivergedError(TrainingError):
    """Several optimizer steps in a row had a loss or gradient that is not finite."""


class GraderError(TrainingError):
    """The grader raised for too many rollouts."""


class RankError(TrainingError):
    """Rank 0 raised; this is how the other ranks report it."""


class Stopped(Exception):
    """A signal was recorded on rank 0: every rank ends the run in order."""
