"""`python -m sandboxkit.integrations.rewards.programs packages [NAME...]` prints the Debian packages."""

import sys

from sandboxkit.integrations.rewards.programs._languages import LANGUAGES, language_of, packages_of

if sys.argv[1:2] != ["packages"]:
    sys.exit("usage: python -m sandboxkit.integrations.rewards.programs packages [LANGUAGE...]")
asked = tuple(map(language_of, sys.argv[2:])) or LANGUAGES
sys.stdout.write(" ".join(packages_of(asked)) + "\n")
