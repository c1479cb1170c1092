"""Rewards for code that a model wrote: graders that are hard to fool, free of any trainer."""

from sandboxkit.integrations.rewards._banned import Finding, banned_patterns
from sandboxkit.integrations.rewards._extract import extract_code
from sandboxkit.integrations.rewards._verdict import Grader, Outcome, Verdict

__all__ = [
    "Finding",
    "Grader",
    "Outcome",
    "Verdict",
    "banned_patterns",
    "extract_code",
]
