"""`sandboxkit completion`: print shell completion scripts."""

import argparse
from collections.abc import Iterator, Mapping

from sandboxkit import _registry
from sandboxkit.cli import _options

_EPILOG = """\
bash, in ~/.bashrc:  eval "$(sandboxkit completion bash)"
zsh, in ~/.zshrc:    eval "$(sandboxkit completion zsh)"
fish, once:          sandboxkit completion fish \\
                       > ~/.config/fish/completions/sandboxkit.fish
"""

_IDS = "$(sandboxkit ls -q 2>/dev/null)"
_BASH = """\
_sandboxkit() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb= item words
    for item in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$verb $item" in {verbs}) verb="$verb $item" ;; esac
    done
    case $before in
        -p|--provider) COMPREPLY=($(compgen -W "{providers}" -- "$word")); return ;;
    esac
    case $verb in
{cases}
        *) words="{words}" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [[ $verb && $word != -* && ${{#COMPREPLY[@]}} -eq 0 ]] && COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _sandboxkit sandboxkit
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "completion",
        help="print a completion script for your shell",
        description="Print a script that completes verbs, options and provider names.",
        epilog=_EPILOG,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))

    def main(args: argparse.Namespace) -> int:
        tree = {name: _described(verb) for name, verb in _parsers(verbs.choices)}
        helps = {action.dest: action.help or "" for action in verbs._choices_actions}
        print(
            _fish(tree, helps) if args.shell == "fish" else _bash(tree, zsh=args.shell == "zsh"),
            end="",
        )
        return 0

    parser.set_defaults(verb=main)


def _parsers(
    verbs: Mapping[str, argparse.ArgumentParser], before: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each verb, and each part of a verb after its verb, such as "snapshots create"."""
    for name, parser in verbs.items():
        yield before + name, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from _parsers(action.choices, f"{name} ")


def _described(verb: argparse.ArgumentParser) -> dict[str, str]:
    """Return what may follow a verb, each with its help: options, parts, and `_IDS` for ids of sandboxes."""
    found = {
        option: action.help or ""
        for action in verb._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    for action in verb._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {each.dest: each.help or "" for each in action._choices_actions}
        elif action.metavar == "ID" and not verb.prog.endswith(" rm"):  # of images and snapshots
            found[_IDS] = "a sandbox"
    return found


def _bash(tree: dict[str, dict[str, str]], *, zsh: bool) -> str:
    script = _BASH.format(
        verbs="|".join(f'" {name}"' for name in tree),
        providers=" ".join(_registry.names()),
        cases="\n".join(
            f'        " {name}") words="{" ".join(options)}" ;;' for name, options in tree.items()
        ),
        words=" ".join([*(name for name in tree if " " not in name), "--provider", "--help"]),
    )
    return (
        f"autoload -U +X compinit bashcompinit && compinit && bashcompinit\n{script}"
        if zsh
        else script
    )


def _fish(tree: dict[str, dict[str, str]], helps: dict[str, str]) -> str:
    lines = [
        f"complete -c sandboxkit -l provider -s p -x -a {_quoted(' '.join(_registry.names()))}",
        *(
            f"complete -c sandboxkit -n __fish_use_subcommand -x -a {name} -d {_quoted(text)}"
            for name, text in helps.items()
        ),
    ]
    for name, options in tree.items():
        for option, text in options.items():
            if option != "--provider":
                seen = [f"__fish_seen_subcommand_from {word}" for word in name.split()]
                condition = _quoted("; and ".join(seen))
                words = _quoted(_IDS[1:]) if option == _IDS else option
                what = f"-l {option[2:]}" if option.startswith("--") else f"-x -a {words}"
                lines.append(f"complete -c sandboxkit -n {condition} {what} -d {_quoted(text)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
