"""Rewards for code that a model wrote: graders that are hard to fool, free of any trainer."""

from sandboxkit.integrations._extras import needs

with needs("rewards"):
    from sandboxkit.integrations.rewards._banned import Finding, banned_patterns
    from sandboxkit.integrations.rewards._boundary import TROUBLE, Phase, time_for_calls, verdict_of
    from sandboxkit.integrations.rewards._extract import extract_code
    from sandboxkit.integrations.rewards._fresh import grade_in_fresh
    from sandboxkit.integrations.rewards._host_compare import HostCompare
    from sandboxkit.integrations.rewards._judge import judge_folder
    from sandboxkit.integrations.rewards._limits import Limits
    from sandboxkit.integrations.rewards._run import grading_session, run_program
    from sandboxkit.integrations.rewards._verdict import Grader, Outcome, Part, Verdict
    from sandboxkit.integrations.rewards.doctor import TaskFinding, TaskReport

__all__ = [
    "TROUBLE",
    "Finding",
    "Grader",
    "HostCompare",
    "Limits",
    "Outcome",
    "Part",
    "Phase",
    "TaskFinding",
    "TaskReport",
    "Verdict",
    "banned_patterns",
    "extract_code",
    "grade_in_fresh",
    "grading_session",
    "judge_folder",
    "run_program",
    "time_for_calls",
    "verdict_of",
]
