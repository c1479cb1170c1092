"""What ends a run that was begun; before each of these a checkpoint of what was learned is written."""

__all__ = ["CheckpointError", "DivergedError", "RankError", "TrainingError"]


class TrainingError(Exception):
    """The training itself could not go on."""


class CheckpointError(TrainingError):
    """A checkpoint or an export could not be written; the ones before it are as they were."""


class DivergedError(TrainingError):
    """Step after step was not finite."""


class RankError(TrainingError):
    """Rank 0 raised what the others could not see."""
