"""Rewards for code that a model wrote: graders that are hard to fool, free of any trainer."""

from sandboxkit.integrations.rewards._banned import Finding, banned_patterns
from sandboxkit.integrations.rewards._boundary import TROUBLE, Phase, outlived, verdict_of
from sandboxkit.integrations.rewards._extract import extract_code
from sandboxkit.integrations.rewards._fresh import grade_in_fresh
from sandboxkit.integrations.rewards._host_compare import HostCompare
from sandboxkit.integrations.rewards._judged import judge_folder
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._plain import ExitCode, PassRate
from sandboxkit.integrations.rewards._run import run_program
from sandboxkit.integrations.rewards._sessions import grading_session
from sandboxkit.integrations.rewards._verdict import Grader, Outcome, Part, Verdict
from sandboxkit.integrations.rewards.doctor import TaskFinding, TaskReport

__all__ = [
    "TROUBLE",
    "ExitCode",
    "Finding",
    "Grader",
    "HostCompare",
    "Limits",
    "Outcome",
    "Part",
    "PassRate",
    "Phase",
    "TaskFinding",
    "TaskReport",
    "Verdict",
    "banned_patterns",
    "extract_code",
    "grade_in_fresh",
    "grading_session",
    "judge_folder",
    "outlived",
    "run_program",
    "verdict_of",
]
