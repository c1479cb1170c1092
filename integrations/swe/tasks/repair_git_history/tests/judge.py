"""Reads the repository with git, once nothing is left in it that git would run or be misled by.

Git is that of the subject's image, where nothing of the submission has run and nothing will.
"""

import subject

MAIN = "56d029e9475f6161de9666bf4374419b9c3a8442"
CHECKOUT = "25b9b57a80a0e2bf3cc83b8ed2a66dea4f7fcfb0"
INDEX = (
    "100644 310f3980a081a8b4db0c21b53c3994c75fb2e367 0\tREADME.md\n"
    "100644 e6633830ae5dcf093e1e9b1a3517612ba9414881 0\tshop.py"
)
REPOSITORY = "/workspace/shop"
CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
MISLEADING = (
    *("hooks", "info", "modules", "worktrees", "refs/replace"),
    *("config.worktree", "commondir", "shallow", "objects/info", "objects/pack/multi-pack-index"),
)
SAFE = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_NO_REPLACE_OBJECTS": "1",
}


def git(*arguments):
    status, out = subject.run(["/usr/bin/git", *arguments], cwd=REPOSITORY, env=SAFE)
    assert status == 0, f"git {arguments[0]} fails"
    return out.strip()


def test_the_repository_is_plain():
    for name in MISLEADING:
        subject.remove(f"{REPOSITORY}/.git/{name}")
    subject.write_file(f"{REPOSITORY}/.git/config", CONFIG)


def test_the_branches_are_right():
    git("fsck", "--full", "--strict")
    assert git("rev-parse", "--verify", "refs/heads/main") == MAIN, "main"
    assert git("rev-parse", "--verify", "refs/heads/checkout") == CHECKOUT, "checkout"
    assert git("rev-list", "--count", f"{MAIN}..{CHECKOUT}") == "3", "the number of commits"
    assert git("symbolic-ref", "HEAD") == "refs/heads/main", "the current branch"


def test_the_working_tree_is_clean():
    # Not by `git status` alone: marks in the index hide changes, and its submodules run programs.
    assert git("ls-files", "--stage") == INDEX, "the index"
    subject.remove(f"{REPOSITORY}/.git/index")
    git("read-tree", MAIN)
    status = git("status", "--porcelain", "--ignored", "--ignore-submodules=all")
    assert status == "", "the status"
