"""`sandboxkit completion`: print shell completion scripts."""

import argparse

from sandboxkit import _registry
from sandboxkit.cli import _options

_EPILOG = """\
bash, in ~/.bashrc:  eval "$(sandboxkit completion bash)"
zsh, in ~/.zshrc:    eval "$(sandboxkit completion zsh)"
fish, once:          sandboxkit completion fish \\
                       > ~/.config/fish/completions/sandboxkit.fish
"""

_BASH = """\
_sandboxkit() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb= item words
    for item in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $item in {verbs}) verb=$item; break ;; esac
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
        tree = {name: _described(verb) for name, verb in verbs.choices.items()}
        helps = {action.dest: action.help or "" for action in verbs._choices_actions}
        print(
            _fish(tree, helps) if args.shell == "fish" else _bash(tree, zsh=args.shell == "zsh"),
            end="",
        )
        return 0

    parser.set_defaults(verb=main)


def _described(verb: argparse.ArgumentParser) -> dict[str, str]:
    return {
        option: action.help or ""
        for action in verb._actions
        for option in action.option_strings
        if option.startswith("--")
    }


def _bash(tree: dict[str, dict[str, str]], *, zsh: bool) -> str:
    script = _BASH.format(
        verbs="|".join(tree),
        providers=" ".join(_registry.names()),
        cases="\n".join(
            f'        {name}) words="{" ".join(options)}" ;;' for name, options in tree.items()
        ),
        words=" ".join([*tree, "--provider", "--help"]),
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
            f"complete -c sandboxkit -n __fish_use_subcommand -x -a {name} -d {_quoted(helps[name])}"
            for name in tree
        ),
    ]
    for name, options in tree.items():
        for option, text in options.items():
            if option != "--provider":
                condition = _quoted(f"__fish_seen_subcommand_from {name}")
                lines.append(
                    f"complete -c sandboxkit -n {condition} -l {option[2:]} -d {_quoted(text)}"
                )
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
