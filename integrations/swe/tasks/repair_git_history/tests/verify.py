"""Reads the branches; what the repository configures is put aside first, so that git runs none of it."""

import os
import shutil
import sys

sys.path.insert(0, "/tests")
import guard

MAIN = "56d029e9475f6161de9666bf4374419b9c3a8442"
CHECKOUT = "25b9b57a80a0e2bf3cc83b8ed2a66dea4f7fcfb0"
REPOSITORY = "/workspace/shop"
CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
SAFE = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


def git(*arguments):
    status, out = guard.run(["/usr/bin/git", *arguments], cwd=REPOSITORY, env=SAFE)
    guard.equal(status, 0, f"the status of git {arguments[0]}")
    return out.strip()


def the_repository_is_plain():
    folder = f"{REPOSITORY}/.git"
    guard.equal(os.path.isdir(folder) and not os.path.islink(folder), True, "the repository")
    for name in ("hooks", "info", "modules", "worktrees"):
        shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
    for name in ("config.worktree", "objects/info/alternates", "commondir"):
        if os.path.lexists(f"{folder}/{name}"):
            os.remove(f"{folder}/{name}")
    with open(f"{folder}/config", "w", encoding="ascii") as file:
        file.write(CONFIG)


def the_branches_are_right():
    guard.equal(git("rev-parse", "refs/heads/main"), MAIN, "main")
    guard.equal(git("rev-parse", "refs/heads/checkout"), CHECKOUT, "checkout")
    guard.equal(git("rev-list", "--count", "main..checkout"), "3", "the number of commits")
    guard.equal(git("symbolic-ref", "HEAD"), "refs/heads/main", "the current branch")
    git("fsck", "--full", "--strict")


def the_working_tree_is_clean():
    guard.equal(git("status", "--porcelain"), "", "the status")


guard.judge(the_repository_is_plain, the_branches_are_right, the_working_tree_is_clean)
