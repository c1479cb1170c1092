"""Looks at the repository with git, in a copy that has the objects, the branches and the index alone."""

import subject

MAIN = "56d029e9475f6161de9666bf4374419b9c3a8442"
CHECKOUT = "25b9b57a80a0e2bf3cc83b8ed2a66dea4f7fcfb0"
INDEX = (
    "100644 310f3980a081a8b4db0c21b53c3994c75fb2e367 0\tREADME.md\n"
    "100644 e6633830ae5dcf093e1e9b1a3517612ba9414881 0\tshop.py\n"
)
FILES = {"README.md": b"# shop\n", "shop.py": b'prices = {"tea": 3, "cake": 4}\n'}


def test_the_branches_are_right():
    git = subject.git("/workspace/shop/.git")
    git("fsck", "--full", "--strict")
    assert git("rev-parse", "--verify", "refs/heads/main").strip() == MAIN, "main"
    assert git("rev-parse", "--verify", "refs/heads/checkout").strip() == CHECKOUT, "checkout"
    assert git("symbolic-ref", "HEAD").strip() == "refs/heads/main", "the current branch"
    assert git("ls-files", "--stage") == INDEX, "the index"


def test_the_working_tree_is_clean():
    files = subject.read_files("/workspace/shop")
    assert {name: files[name] for name in files if name[:5] != ".git/"} == FILES, "the files"
